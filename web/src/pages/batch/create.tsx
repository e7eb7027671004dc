import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useRef, useState } from "react";
import { api, unwrap } from "~/api/client";
import { endpointKeys } from "~/api/endpoints";
import { modelNamesQuery } from "~/api/models";
import { keys, projectsQuery, volumesQuery } from "~/api/queries";
import { FormDialog } from "~/components/forms/dialogs";
import { Field } from "~/components/parts";
import { TextInput } from "~/components/forms/textInput";
import { toast } from "~/components/shell/toasts";
import { batchRequest } from "./batchRequest";
import { fieldsOf } from "~/pages/endpoint/deployRequest";
import { newIdempotencyKey } from "~/lib/idempotencyKey";

interface BatchProps {
  project: string;
  model: string | undefined;
  isOpen: boolean;
  close: () => void;
}

/** Submits a batch prediction and opens its job. */
export function BatchDialog({ project: first, model, isOpen, close }: BatchProps) {
  const [project, setProject] = useState(first);
  const { data: projects } = useQuery(projectsQuery);
  const { data: volumes } = useQuery({ ...volumesQuery, enabled: isOpen });
  const { data: models } = useQuery({ ...modelNamesQuery(project), enabled: isOpen });
  const client = useQueryClient();
  const navigate = useNavigate();
  const refs = (models?.items ?? []).flatMap((each) => [
    ...(each.latest == null ? [] : [`${each.name}@${each.latest}`]),
    ...Object.keys(each.aliases ?? {}).map((alias) => `${each.name}@${alias}`),
  ]);
  const volumePrefixes = (volumes ?? []).map((volume) => `${volume.name}/`);
  // One key per request: a retry after a lost response creates no second job.
  const key = useRef({ text: "", key: "" });
  const submit = async (data: FormData) => {
    const body = batchRequest(fieldsOf(data));
    const text = JSON.stringify([project, body]);
    if (key.current.text !== text) key.current = { text, key: newIdempotencyKey() };
    const params = { path: { project }, header: { "Idempotency-Key": key.current.key } };
    const job = await unwrap(api.POST("/api/v1/projects/{project}/batch-predictions", { params, body }));
    key.current = { text: "", key: "" }; // The same request again means another job.
    await Promise.all([
      client.invalidateQueries({ queryKey: endpointKeys.batches }),
      client.invalidateQueries({ queryKey: keys.jobs }),
    ]);
    toast(`Submitted ${job.name}.`);
    await navigate({ to: "/jobs/$job", params: { job: job.id } });
    return false; // The page changes; closing the dialog would navigate back to the list.
  };
  return (
    <FormDialog title="New batch prediction" isOpen={isOpen} close={close} verb="Submit" submit={submit} isWide>
      {(errorOf) => (
        <>
          <div className="pair">
            <TextInput name="name" label="Name" placeholder="batch-predict" error={errorOf("name")} />
            <Field label="Project" error={errorOf("project")}>
              {(props) => (
                <select
                  {...props}
                  className="input"
                  value={project}
                  onChange={(event) => setProject(event.target.value)}
                >
                  {(projects ?? [{ name: first }]).map((each) => (
                    <option key={each.name}>{each.name}</option>
                  ))}
                </select>
              )}
            </Field>
            <TextInput
              name="model"
              label="Model"
              placeholder="name@version, name@alias or volume/path"
              defaultValue={model ?? ""}
              list={refs}
              error={errorOf("model")}
              isRequired
            />
            <TextInput
              name="input"
              label="Instances"
              placeholder="volume/path"
              list={volumePrefixes}
              hint="A JSONL or CSV file, or a folder of them."
              error={errorOf("input")}
              isRequired
            />
            <TextInput
              name="output"
              label="Output"
              placeholder="job's own folder"
              list={volumePrefixes}
              hint="A repeated run resumes where it stopped."
              error={errorOf("output")}
            />
            <Field label="Format" error={errorOf("format")}>
              {(props) => (
                <select {...props} name="format" className="input">
                  <option value="auto">by file name</option>
                  <option value="jsonl">JSONL, one instance per line</option>
                  <option value="csv">CSV with a header</option>
                </select>
              )}
            </Field>
          </div>
          <div className="fours">
            <TextInput name="replicas" label="Replicas" type="number" placeholder="1" error={errorOf("replicas")} />
            <TextInput
              name="batch_size"
              label="Batch size"
              type="number"
              placeholder="64"
              error={errorOf("batch_size")}
            />
            <TextInput
              name="shard_size"
              label="Rows per file"
              type="number"
              placeholder="10000"
              error={errorOf("shard_size")}
            />
            <TextInput name="cpu" label="CPUs each" placeholder="shared" error={errorOf("resources.cpu")} />
            <TextInput name="memory" label="Memory each" placeholder="shared" error={errorOf("resources.memory")} />
            <TextInput name="gpus" label="GPUs each" placeholder="0" error={errorOf("resources.gpus")} />
          </div>
          <label className="row top">
            <input type="checkbox" className="check" name="trust_code" />
            <span>
              Trust the model's code
              <span className="dim small"> – loading pickle or joblib files can run arbitrary code</span>
            </span>
          </label>
        </>
      )}
    </FormDialog>
  );
}
