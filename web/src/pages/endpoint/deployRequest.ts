import type { DeployRequest, Revision } from "~/api/types";

/* Requests to deploy a model from a form. */

type Spec = Revision["spec"];

/** The fields that a new revision inherits from an existing one: all but the model. */
export function inheritedFields(spec: Spec): Partial<DeployRequest> {
  const { framework, trust_code, image, command, args, env, secrets, port, health_route, predict_route } = spec;
  const {
    resources,
    priority,
    preemptible,
    node_selector,
    timeout_s,
    ready_timeout_s,
    drain_s,
    max_surge,
    max_unavailable,
  } = spec;
  const all = {
    ...{ framework, trust_code, image, command, args, env, secrets, port, health_route, predict_route },
    ...{
      resources,
      priority,
      preemptible,
      node_selector,
      timeout_s,
      ready_timeout_s,
      drain_s,
      max_surge,
      max_unavailable,
    },
  };
  return Object.fromEntries(Object.entries(all).filter(([, value]) => value !== undefined && value !== null));
}

/** A display name for the model of a revision. */
export function modelOf(spec: Spec): string {
  if (spec.model_name) return spec.model_name;
  return spec.model_file ? `${spec.model}/${spec.model_file}` : spec.model;
}

const NUMBERS = [
  "replicas",
  "traffic",
  "timeout_s",
  "ready_timeout_s",
  "drain_s",
  "max_surge",
  "max_unavailable",
  "port",
] as const;
const RESOURCES = ["cpu", "memory", "gpus"] as const;
const WHOLE = /^\d+$/;

/** A request from a form's fields on top of inherited fields. Blank fields are omitted. */
export function deployRequest(fields: ReadonlyMap<string, string>, before: Partial<DeployRequest> = {}): DeployRequest {
  const text = (name: string) => (fields.get(name) ?? "").trim();
  const stated: Record<string, unknown> = {};
  for (const name of NUMBERS) if (text(name) !== "") stated[name] = Number(text(name));
  for (const name of ["deployment", "framework", "reason", "image"] as const)
    if (text(name) !== "") stated[name] = text(name);
  return {
    ...before,
    ...stated,
    model: text("model"),
    trust_code: fields.has("trust_code"),
    resources: { ...before.resources, ...resourcesOf(fields) },
  } as DeployRequest;
}

/** CPUs, memory and GPUs as in a job spec, without blank fields. */
export function resourcesOf(fields: ReadonlyMap<string, string>): Record<string, unknown> {
  const found = RESOURCES.map((name) => [name, (fields.get(name) ?? "").trim()] as const).filter(
    ([, value]) => value !== "",
  );
  return Object.fromEntries(
    found.map(([name, value]) => [name, WHOLE.test(value) || /^\d*\.\d+$/.test(value) ? Number(value) : value]),
  );
}

/** The text fields of a form. */
export function fieldsOf(data: FormData): Map<string, string> {
  return new Map([...data].filter((pair): pair is [string, string] => typeof pair[1] === "string"));
}
