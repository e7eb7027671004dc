import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { Package } from "lucide-react";
import { useRef, useState } from "react";
import { api, unwrap } from "~/api/client";
import { modelKeys, modelNamesQuery, STAGES } from "~/api/models";
import { checkpointsQuery, isOver, jobQuery } from "~/api/queries";
import type { Job, Stage } from "~/api/types";
import { FormDialog } from "~/components/forms/dialogs";
import { Field } from "~/components/parts";
import { TextInput } from "~/components/forms/textInput";
import { toast } from "~/components/shell/toasts";
import { number } from "~/lib/format";
import { newIdempotencyKey } from "~/lib/idempotencyKey";

/** Registers a job's model; shown once the job has run. */
export function RegisterButton({ job }: { job: Job }) {
  const [isOpen, setOpen] = useState(false);
  if ((job.attempt_count ?? 0) === 0) return null;
  return (
    <>
      <button type="button" className="button" onClick={() => setOpen(true)}>
        <Package size={15} aria-hidden="true" /> Register as model
      </button>
      <RegisterDialog job={job.id} isOpen={isOpen} close={() => setOpen(false)} />
    </>
  );
}

interface RegisterProps {
  job: string;
  isOpen: boolean;
  close: () => void;
  /** Preselected checkpoint. */
  checkpoint?: string;
}

const OUTPUT = "";

/** A new version of a model, from a job's output or one of its checkpoints. */
export function RegisterDialog({ job: id, isOpen, close, checkpoint = OUTPUT }: RegisterProps) {
  const { data: job } = useQuery({ ...jobQuery(id), enabled: isOpen });
  const { data: checkpoints } = useQuery({ ...checkpointsQuery(id), enabled: isOpen });
  const { data: known } = useQuery({ ...modelNamesQuery(job?.project ?? ""), enabled: isOpen && job !== undefined });
  const [source, setSource] = useState(checkpoint);
  // One key per request: a retry after a lost response creates no second version.
  const key = useRef({ fingerprint: "", key: "" });
  const client = useQueryClient();
  const navigate = useNavigate();
  const complete = (checkpoints?.items ?? []).filter((each) => each.is_complete !== false);
  const isRunning = (each: Job) => !isOver(each.state);
  const submit = async (data: FormData) => {
    const registered = job ?? (await client.fetchQuery(jobQuery(id)));
    const text = (name: string) => String(data.get(name) ?? "").trim();
    const isOutput = source === OUTPUT;
    const body = {
      job: registered.id,
      ...(isOutput
        ? { ...(text("path") ? { path: text("path") } : {}), when_done: isRunning(registered) }
        : { checkpoint: source }),
      description: text("description"),
      stage: text("stage") as Stage,
      aliases: text("aliases")
        .split(/[\s,]+/)
        .filter(Boolean),
    };
    const model = text("model");
    const fingerprint = JSON.stringify([model, body]);
    if (key.current.fingerprint !== fingerprint) key.current = { fingerprint, key: newIdempotencyKey() };
    const params = { path: { project: registered.project, model }, header: { "Idempotency-Key": key.current.key } };
    const version = await unwrap(api.POST("/api/v1/projects/{project}/models/{model}/versions", { params, body }));
    key.current = { fingerprint: "", key: "" };
    await Promise.all([
      client.invalidateQueries({ queryKey: modelKeys.all }),
      client.invalidateQueries({ queryKey: modelKeys.detail(version.project, version.model) }),
    ]);
    toast(`Registered ${version.model} v${version.version}.`);
    const to = { project: version.project, model: version.model, version: String(version.version) };
    await navigate({ to: "/models/$project/$model/versions/$version", params: to });
    return true;
  };
  return (
    <FormDialog
      title={`Register a model from ${job?.name ?? id}`}
      isOpen={isOpen}
      close={close}
      verb="Register"
      submit={submit}
      isWide
    >
      {(errorOf) => (
        <>
          <p className="dim">
            Its files are copied and immutable. The version records its lineage: the job with its code, data, parameters
            and metrics.
          </p>
          <div className="pair">
            <TextInput
              name="model"
              label="Model"
              placeholder={job?.name.replace(/-\d+$/, "") ?? "my-model"}
              list={(known?.items ?? []).map((model) => model.name)}
              hint="An existing name gets a new version."
              error={errorOf("model") ?? errorOf("name")}
              isRequired
            />
            <Field label="Source" error={errorOf("checkpoint") ?? errorOf("job")}>
              {(props) => (
                <select {...props} className="input" value={source} onChange={(event) => setSource(event.target.value)}>
                  <option value={OUTPUT}>job output</option>
                  {complete.map((each) => (
                    <option key={each.path} value={each.path}>
                      {each.path}
                      {each.step != null ? `, step ${number(each.step)}` : ""}
                    </option>
                  ))}
                </select>
              )}
            </Field>
          </div>
          {source === OUTPUT && (
            <TextInput
              name="path"
              label="Path in the output"
              placeholder="model"
              hint={
                job && isRunning(job)
                  ? "Registered once the job succeeds. Use . for the whole output."
                  : "Use . for the whole output."
              }
              error={errorOf("path")}
            />
          )}
          <div className="pair">
            <Field label="Stage" error={errorOf("stage")}>
              {(props) => (
                <select {...props} name="stage" className="input">
                  {STAGES.map((stage) => (
                    <option key={stage}>{stage}</option>
                  ))}
                </select>
              )}
            </Field>
            <TextInput
              name="aliases"
              label="Aliases"
              placeholder="prod, best"
              hint="Set once the version is ready."
              error={errorOf("aliases")}
            />
          </div>
          <Field label="Description" error={errorOf("description")}>
            {(props) => <textarea {...props} name="description" className="input" rows={2} />}
          </Field>
        </>
      )}
    </FormDialog>
  );
}
