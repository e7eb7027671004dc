import { useQuery } from "@tanstack/react-query";
import type { ReactNode } from "react";
import type { Document } from "yaml";
import { nodesQuery, projectsQuery, volumesQuery } from "~/api/queries";
import type { Mistake } from "~/api/types";
import { TextInput } from "~/components/forms/textInput";
import { Field } from "~/components/parts";
import { gpuModels } from "~/lib/capacity";
import { Code } from "./code";
import { fieldText } from "./draft";

interface FormProps {
  document: Document;
  mistakes: readonly Mistake[];
  set: (name: string, value: string) => void;
}

/** The most common fields of a job. The form preserves all other fields of the YAML. */
export function JobForm({ document, mistakes, set }: FormProps) {
  const { data: projects } = useQuery(projectsQuery);
  const { data: volumes } = useQuery(volumesQuery);
  const { data: nodes } = useQuery(nodesQuery);
  const models = gpuModels(nodes ?? []);
  const hasRoles = document.has("roles");
  const isBroken = document.errors.length > 0;

  const field = (
    name: string,
    label: string,
    more: { hint?: ReactNode; placeholder?: string; type?: string; list?: readonly string[] } = {},
  ) => (
    <TextInput
      name={name}
      label={label}
      value={isBroken ? "" : fieldText(document, name)}
      error={mistakes.find((mistake) => mistake.path === name || mistake.path.startsWith(`${name}.`))?.message}
      isDisabled={isBroken}
      set={(value) => set(name, value)}
      {...more}
    />
  );
  return (
    <>
      {isBroken && <p className="note warn">The YAML has a syntax error. Fix it there to use the form.</p>}
      <div className="pair">
        {field("name", "Name")}
        {field("project", "Project", { placeholder: "default", list: (projects ?? []).map((project) => project.name) })}
      </div>
      {field("command", "Command", {
        placeholder: "python train.py",
        hint: "Runs in /data, where the code is unpacked.",
      })}
      <Code
        digest={isBroken ? "" : fieldText(document, "code")}
        isDisabled={isBroken}
        set={(digest) => set("code", digest)}
      />
      {field("image", "Image", { placeholder: "none: a plain process", hint: "Only for container executors." })}
      <fieldset>
        <legend>Environment</legend>
        <div className="stack">
          <div className="pair">
            {field("environment.venv", "Virtual environment", { placeholder: "/path/of/venv" })}
            {field("environment.conda", "Conda environment", { placeholder: "name" })}
          </div>
          {field("environment.python", "Python", {
            placeholder: "the platform's, or the image's",
            hint: "A path on the job's machine, or in its image.",
          })}
          <Field
            label="Requirements"
            hint="Lines of a requirements file. They are installed once for all jobs with the same lines."
            error={mistakes.find((mistake) => mistake.path.startsWith("environment.requirements"))?.message}
          >
            {(props) => (
              <textarea
                {...props}
                name="environment.requirements"
                className="input mono"
                rows={3}
                spellCheck={false}
                disabled={isBroken}
                value={isBroken ? "" : fieldText(document, "environment.requirements")}
                onChange={(event) => set("environment.requirements", event.target.value)}
              />
            )}
          </Field>
        </div>
      </fieldset>
      <fieldset>
        <legend>Gang</legend>
        {hasRoles ? (
          <p className="hint dim">This spec defines its roles individually. Edit them in the YAML.</p>
        ) : (
          <div className="fours">
            {field("workers", "Workers", { placeholder: "1" })}
            {field("ps", "Parameter servers", { placeholder: "0", type: "number" })}
            {field("gpus", "GPUs each", { placeholder: "0", hint: "0.5 is half a GPU." })}
            {field("gpu_type", "GPU model", { placeholder: "any", list: models })}
            {field("cpu", "CPUs each", { placeholder: "shared" })}
            {field("memory", "Memory each", { placeholder: "shared" })}
            {field("shm", "Shared memory", { placeholder: "engine's" })}
            {field("processes_per_replica", "Processes each", { placeholder: "per GPU", type: "number" })}
          </div>
        )}
      </fieldset>
      <fieldset>
        <legend>Data</legend>
        <div className="pair">
          {field("input", "Input", {
            placeholder: "volume/path",
            list: (volumes ?? []).map((volume) => `${volume.name}/`),
            hint: "Read-only at /data/data.",
          })}
          {field("output", "Output", { placeholder: "job's own folder", hint: "At /data/output." })}
        </div>
      </fieldset>
      <fieldset>
        <legend>Policies</legend>
        <div className="fours">
          {field("priority", "Priority", { placeholder: "50", type: "number" })}
          {field("max_restarts", "Restarts", { placeholder: "3", type: "number" })}
          {field("max_run_time", "Max run time", { placeholder: "no limit" })}
          {field("max_wait", "Max wait", { placeholder: "no limit" })}
        </div>
      </fieldset>
    </>
  );
}
