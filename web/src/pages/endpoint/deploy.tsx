import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { api, unwrap } from "~/api/client";
import { endpointKeys, endpointNamesQuery } from "~/api/endpoints";
import { modelKeys, modelNamesQuery } from "~/api/models";
import type { Revision } from "~/api/types";
import { FormDialog, type FieldErrorLookup } from "~/components/forms/dialogs";
import { Field } from "~/components/parts";
import { TextInput } from "~/components/forms/textInput";
import { toast } from "~/components/shell/toasts";
import { deployRequest, fieldsOf, modelOf, inheritedFields } from "./deployRequest";

interface DeployProps {
  project: string;
  /** Preset model. */
  model?: string;
  /** Preset endpoint; without it the form has a field for it, and creates a missing endpoint. */
  endpoint?: string;
  /** The deployed model to update; without it the form has a field for its name. */
  deployment?: { name: string; spec: Revision["spec"]; replicas: number } | undefined;
  isOpen: boolean;
  close: () => void;
}

/** A new deployed model, or the next revision of one. */
export function DeployDialog({ project, model, endpoint, deployment, isOpen, close }: DeployProps) {
  const { data: endpoints } = useQuery({ ...endpointNamesQuery(project), enabled: isOpen && endpoint === undefined });
  const { data: models } = useQuery({ ...modelNamesQuery(project), enabled: isOpen });
  const client = useQueryClient();
  const navigate = useNavigate();
  const spec = deployment?.spec;
  const refs = (models?.items ?? []).flatMap((each) => [
    ...(each.latest == null ? [] : [`${each.name}@${each.latest}`]),
    ...Object.keys(each.aliases ?? {}).map((alias) => `${each.name}@${alias}`),
  ]);
  const submit = async (data: FormData) => {
    const fields = fieldsOf(data);
    const name = endpoint ?? (fields.get("endpoint") ?? "").trim();
    const body = deployRequest(fields, {
      ...(spec ? inheritedFields(spec) : {}),
      ...(deployment ? { deployment: deployment.name } : {}),
    });
    const at = { project, endpoint: name };
    if (endpoint === undefined && !(endpoints?.items ?? []).some((each) => each.name === name)) {
      await unwrap(
        api.POST("/api/v1/projects/{project}/endpoints", {
          params: { path: { project } },
          body: { name, description: "" },
        }),
      );
      await client.invalidateQueries({ queryKey: endpointKeys.all });
    }
    await unwrap(
      api.POST("/api/v1/projects/{project}/endpoints/{endpoint}/deployments", { params: { path: at }, body }),
    );
    await Promise.all([
      client.invalidateQueries({ queryKey: endpointKeys.all }),
      client.invalidateQueries({ queryKey: endpointKeys.detail(project, name) }),
      client.invalidateQueries({ queryKey: modelKeys.all }),
    ]);
    toast(`${body.model} is being deployed to ${name}.`);
    await navigate({ to: "/endpoints/$project/$endpoint", params: at });
  };
  const title = deployment
    ? `Update ${deployment.name}`
    : endpoint === undefined
      ? `Deploy ${model ?? "a model"}`
      : `Deploy to ${endpoint}`;
  return (
    <FormDialog
      title={title}
      isOpen={isOpen}
      close={close}
      verb={deployment ? "Update" : "Deploy"}
      submit={submit}
      isWide
    >
      {(errorOf) => (
        <>
          {deployment && (
            <p className="dim">
              Replicas are replaced step by step. If the new revision does not get ready, the present one keeps serving.
            </p>
          )}
          <div className="pair">
            {endpoint === undefined && (
              <TextInput
                name="endpoint"
                label="Endpoint"
                placeholder={model?.split("@")[0] ?? "my-endpoint"}
                list={(endpoints?.items ?? []).map((each) => each.name)}
                hint="A new name creates an endpoint."
                error={errorOf("name") ?? errorOf("endpoint")}
                isRequired
              />
            )}
            <TextInput
              name="model"
              label="Model"
              placeholder="name@version, name@alias or volume/path"
              defaultValue={model ?? (spec ? modelOf(spec) : "")}
              list={refs}
              hint="An alias is resolved at deployment; later changes of the alias do not apply."
              error={errorOf("model")}
              isRequired
            />
            {!deployment && (
              <TextInput
                name="deployment"
                label="Deployment name"
                placeholder="default"
                hint="An existing name gets a new revision."
                error={errorOf("deployment")}
              />
            )}
          </div>
          <div className="fours">
            {/* Blank fields stay unchanged; the default of a new one is one replica with all remaining traffic. */}
            <TextInput
              name="replicas"
              label="Replicas"
              type="number"
              placeholder={deployment ? String(deployment.replicas) : "1"}
              error={errorOf("replicas")}
            />
            <TextInput
              name="traffic"
              label="Traffic, %"
              type="number"
              placeholder="unchanged"
              error={errorOf("traffic")}
            />
            <TextInput
              name="cpu"
              label="CPUs each"
              placeholder={placeholder(spec, "cpu")}
              error={errorOf("resources.cpu")}
            />
            <TextInput
              name="memory"
              label="Memory each"
              placeholder={placeholder(spec, "memory")}
              error={errorOf("resources.memory")}
            />
            <TextInput
              name="gpus"
              label="GPUs each"
              placeholder={placeholder(spec, "gpus", "0")}
              error={errorOf("resources.gpus")}
            />
          </div>
          <label className="row top">
            <input type="checkbox" className="check" name="trust_code" defaultChecked={spec?.trust_code ?? false} />
            <span>
              Trust the model's code
              <span className="dim small"> – loading pickle, joblib or torch.export files can run arbitrary code</span>
            </span>
          </label>
          <More spec={spec} errorOf={errorOf} />
          <TextInput name="reason" label="Reason" placeholder="optional" error={errorOf("reason")} />
        </>
      )}
    </FormDialog>
  );
}

const placeholder = (spec: Revision["spec"] | undefined, name: string, unstated = "shared"): string =>
  String(spec?.resources?.[name] ?? unstated);

const FRAMEWORKS = ["auto", "torch", "sklearn", "tensorflow", "xgboost"];

/** Rarely used fields. */
function More({ spec, errorOf }: { spec: Revision["spec"] | undefined; errorOf: FieldErrorLookup }) {
  const field = (name: keyof Revision["spec"] & string, label: string, unstated: string, type = "number") => (
    <TextInput
      name={name}
      label={label}
      type={type}
      placeholder={String(spec?.[name] ?? unstated)}
      error={errorOf(name)}
    />
  );
  return (
    <details className="more">
      <summary>More: framework, image, timeouts, update strategy</summary>
      <div className="fours">
        <Field label="Framework" error={errorOf("framework")}>
          {(props) => (
            <select {...props} name="framework" className="input" defaultValue={spec?.framework ?? "auto"}>
              {FRAMEWORKS.map((framework) => (
                <option key={framework}>{framework}</option>
              ))}
            </select>
          )}
        </Field>
        {field("timeout_s", "Request timeout, s", "60")}
        {field("ready_timeout_s", "Ready timeout, s", "600")}
        {field("drain_s", "Drain time, s", "5")}
        {field("max_surge", "Max surge", "1")}
        {field("max_unavailable", "Max unavailable", "0")}
      </div>
      <TextInput
        name="image"
        label="Image"
        placeholder={spec?.image ?? "the platform's own server"}
        hint="A container with an HTTP server, as in Vertex AI custom containers."
        error={errorOf("image")}
      />
    </details>
  );
}
