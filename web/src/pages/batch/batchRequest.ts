import type { components } from "~/api/schema.gen";
import { resourcesOf } from "~/pages/endpoint/deployRequest";

/* A batch prediction as a form asks for it. */

const LABEL_LENGTH = 63;

export type BatchRequest = components["schemas"]["BatchPredictRequest"];

/** Of a registered model: so that a list of jobs can tell which one was asked. */
function labelsOf(model: string): Record<string, string> {
  const [name, version] = model.includes("/") ? [] : model.split("@");
  return name && version && version.length <= LABEL_LENGTH ? { model: name, version } : {};
}

/** The model of a job that {@link batchRequest} asked for; undefined of any other. */
export function modelFromLabels(labels: Record<string, string> | undefined): string | undefined {
  return labels?.["model"] && labels["version"] ? `${labels["model"]}@${labels["version"]}` : undefined;
}

/** What is empty is left unstated. */
export function batchRequest(fields: ReadonlyMap<string, string>): BatchRequest {
  const text = (name: string) => (fields.get(name) ?? "").trim();
  const stated: Record<string, unknown> = {};
  for (const name of ["replicas", "batch_size", "shard_size"] as const)
    if (text(name) !== "") stated[name] = Number(text(name));
  for (const name of ["name", "output", "format"] as const) if (text(name) !== "") stated[name] = text(name);
  const model = text("model");
  return {
    ...stated,
    model,
    input: text("input"),
    trust_code: fields.has("trust_code"),
    resources: resourcesOf(fields),
    labels: labelsOf(model),
  } as BatchRequest;
}
