import type { components } from "~/api/schema.gen";
import { resourcesOf } from "~/pages/endpoint/deployRequest";

/* Requests for batch predictions from a form. */

const LABEL_LENGTH = 63;

export type BatchRequest = components["schemas"]["BatchPredictRequest"];

/** Labels that name a registered model, so that the list of jobs can show it. */
function labelsOf(model: string): Record<string, string> {
  const [name, version] = model.includes("/") ? [] : model.split("@");
  return name && version && version.length <= LABEL_LENGTH ? { model: name, version } : {};
}

/** The model in the labels set by {@link batchRequest}; undefined for other jobs. */
export function modelFromLabels(labels: Record<string, string> | undefined): string | undefined {
  return labels?.["model"] && labels["version"] ? `${labels["model"]}@${labels["version"]}` : undefined;
}

/** Blank fields are omitted. */
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
