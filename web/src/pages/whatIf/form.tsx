import { useQuery } from "@tanstack/react-query";
import { CircleHelp } from "lucide-react";
import { useState } from "react";
import { nodesQuery } from "~/api/queries";
import type { JobSpec } from "~/api/types";
import { TextInput } from "~/components/forms/textInput";
import { duration } from "~/lib/format";
import { gpuModels } from "~/lib/capacity";
import { type Question, validateQuestion } from "./question";

interface FormProps {
  spec: JobSpec;
  ask: (question: Question) => void;
}

const NAMES_SHOWN = 200;

/** Changes of the job and of the cluster. Placeholders show the present values. */
export function QuestionForm({ spec, ask }: FormProps) {
  const { data: nodes } = useQuery(nodesQuery);
  const [mistake, setMistake] = useState("");
  const names = (nodes ?? []).map((node) => node.name).slice(0, NAMES_SHOWN);
  const models = gpuModels(nodes ?? []);
  const roles = Object.entries(spec.roles ?? {});
  const withGpus = roles.map(([, role]) => role.resources).find((resources) => resources?.gpus);
  const selector = Object.entries(spec.node_selector ?? {}).map(([key, value]) => `${key}=${value}`);
  const submit = (form: FormData) => {
    const text = (name: string) => String(form.get(name) ?? "").trim();
    const question: Question = {
      replicas: Object.fromEntries(roles.map(([role]) => [role, text(`replicas.${role}`)])),
      gpus: text("gpus"),
      gpuType: text("gpu_type"),
      labels: text("labels"),
      priority: text("priority"),
      maxRunTime: text("max_run_time"),
      moreNodes: text("more_nodes"),
      like: text("like"),
      without: text("without"),
    };
    const found = validateQuestion(question);
    setMistake(found);
    if (found === "") ask(question);
  };
  return (
    <form
      className="stack"
      aria-label="What if"
      onSubmit={(event) => {
        event.preventDefault();
        submit(new FormData(event.currentTarget));
      }}
    >
      <fieldset>
        <legend>Job</legend>
        <div className="fours">
          {roles.map(([role, { replicas, min_replicas }]) => (
            <TextInput
              isNumeric
              key={role}
              name={`replicas.${role}`}
              label={role === "worker" ? "Workers" : `Replicas of ${role}`}
              placeholder={min_replicas ? `${min_replicas}-${replicas}` : String(replicas ?? 1)}
            />
          ))}
          <TextInput isNumeric name="gpus" label="GPUs each" placeholder={String(withGpus?.gpus ?? 0)} />
          <TextInput
            isNumeric
            name="gpu_type"
            label="GPU model"
            placeholder={withGpus?.gpu_type?.join(" or ") || "any"}
            list={models}
          />
          <TextInput isNumeric name="labels" label="Node labels" placeholder={selector.join(", ") || "pool=…"} />
          <TextInput
            isNumeric
            name="priority"
            label="Priority"
            placeholder={String(spec.priority ?? 50)}
            list={["low", "normal", "high", "urgent"]}
          />
          <TextInput
            isNumeric
            name="max_run_time"
            label="Max run time"
            placeholder={spec.max_run_time ? duration(spec.max_run_time) : "no limit"}
          />
        </div>
      </fieldset>
      <fieldset>
        <legend>Cluster</legend>
        <div className="fours">
          <TextInput isNumeric name="more_nodes" label="Additional nodes" placeholder="0" type="number" />
          <TextInput isNumeric name="like" label="Like node" placeholder="a node" list={names} />
          <TextInput isNumeric name="without" label="Removed nodes" placeholder="none" list={names} />
        </div>
      </fieldset>
      {mistake && (
        <p className="note bad" role="alert">
          {mistake}
        </p>
      )}
      <div className="row">
        <button type="submit" className="button primary">
          <CircleHelp size={15} aria-hidden="true" /> Ask the planner
        </button>
        <span className="dim small">Blank fields stay unchanged. Nothing is submitted.</span>
      </div>
    </form>
  );
}
