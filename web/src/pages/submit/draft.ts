import { type Document, isMap, isScalar } from "yaml";
import type { ForecastOption, Mistake } from "~/api/types";
import type { Diagnostic } from "~/components/forms/editor";
import { plainValues, readYaml } from "~/lib/yaml/yamlDraft";

/* The YAML text is the source of truth; the form reads from it and writes into it, and preserves comments and order. */

export const EXAMPLE = `name: my-job
command: python train.py
workers: 2
cpu: 1
memory: 2Gi
max_restarts: 3
`;

/** The sentences in the API's header `Warning`, each a JSON string behind a code and an agent. */
export function warningsIn(header: string | null): string[] {
  return [...(header ?? "").matchAll(/\d{3} \S+ ("(?:[^"\\]|\\.)*")/g)].map(
    (found) => JSON.parse(found[1] ?? '""') as string,
  );
}

const ENVIRONMENT = "environment.";

/** The text of a field of the environment; requirements are lines. */
function environmentText(document: Document, name: string): string {
  const plain = plainValues(document) as { environment?: Record<string, unknown> } | undefined;
  const value = plain?.environment?.[name];
  return Array.isArray(value) ? value.join("\n") : typeof value === "string" ? value : "";
}

/** The text with one field of the environment set, or removed if `value` is empty. */
function withEnvironment(text: string, name: string, value: string): string {
  const document = readYaml(text);
  if (document.errors.length > 0) return text;
  if (!isMap(document.get("environment"))) {
    if (value === "") return text;
    document.set("environment", document.createNode({}));
  }
  if (value === "") document.deleteIn(["environment", name]);
  else document.setIn(["environment", name], value);
  const rest = document.get("environment");
  if (isMap(rest) && rest.items.length === 0) document.delete("environment");
  return document.toString({ lineWidth: 0 });
}

/** The value of a top-level field or one of `environment.…`, as a person would type it. */
export function fieldText(document: Document, name: string): string {
  if (name.startsWith(ENVIRONMENT)) return environmentText(document, name.slice(ENVIRONMENT.length));
  const value = document.get(name);
  if (value === undefined || value === null) return "";
  const plain = isScalar(value) ? value.value : (plainValues(document) as Record<string, unknown> | undefined)?.[name];
  if (plain === undefined || plain === null) return "";
  if (Array.isArray(plain))
    return plain.every((word) => /^[\w@%+=:,./-]+$/.test(String(word))) ? plain.join(" ") : JSON.stringify(plain);
  return typeof plain === "object" ? JSON.stringify(plain) : String(plain);
}

/** The text with one field set, or removed if `value` is empty. */
export function withValue(text: string, name: string, value: string): string {
  if (name.startsWith(ENVIRONMENT)) return withEnvironment(text, name.slice(ENVIRONMENT.length), value);
  const document = readYaml(text);
  if (document.errors.length > 0) return text;
  if (!isMap(document.contents)) return value === "" ? text : `${name}: ${value}\n`;
  if (value === "") document.delete(name);
  else
    document.set(
      name,
      /^-?\d+$/.test(value) || (name === "gpus" && /^\d*\.\d+$/.test(value))
        ? Number(value)
        : value === "true"
          ? true
          : value === "false"
            ? false
            : value,
    );
  return document.toString({ lineWidth: 0 });
}

/** The text with one of the planner's alternatives applied, where the text has the same field already. */
export function withOption(text: string, { roles = [], field, value }: ForecastOption): string {
  const document = readYaml(text);
  if (document.errors.length > 0 || !isMap(document.contents)) return text;
  if (roles.length === 0) document.delete(field);
  for (const role of roles) {
    if (document.hasIn(["roles", role])) setInRole(document, ["roles", role], field, value);
    else if (field === "replicas") setCount(document, [role === "worker" ? "workers" : role], value);
    else document.set(field, value);
  }
  return document.toString({ lineWidth: 0 });
}

function setInRole(document: Document, at: string[], field: string, value: unknown): void {
  const role = document.getIn(at);
  if (!isMap(role)) {
    // `worker: 2` is short for its replicas.
    if (field === "replicas") document.setIn(at, value);
    else document.setIn(at, document.createNode({ replicas: role ?? 1, resources: { [field]: value } }));
  } else if (field !== "replicas") document.setIn([...at, "resources", field], value);
  else if (role.has("min_replicas")) document.setIn([...at, "min_replicas"], value);
  else setCount(document, [...at, "replicas"], value);
}

/** Sets a replica count, or the minimum of an elastic role. */
function setCount(document: Document, at: string[], value: unknown): void {
  document.setIn(isMap(document.getIn(at)) ? [...at, "min"] : at, value);
}

/** Syntax errors, or else the API's errors, at their positions in the text. */
export function diagnosticsOf(text: string, mistakes: readonly Mistake[]): Diagnostic[] {
  const document = readYaml(text);
  const found: Diagnostic[] = document.errors.map((error) => ({
    from: error.pos[0],
    to: Math.max(error.pos[1], error.pos[0]),
    severity: "error",
    message: error.message.split("\n")[0] ?? error.message,
  }));
  if (found.length > 0) return found;
  for (const mistake of mistakes) {
    const [from, to] = rangeOf(document, mistake.path.split(".").filter(Boolean));
    found.push({
      from,
      to,
      severity: "error",
      message: mistake.hint ? `${mistake.message} (${mistake.hint})` : mistake.message,
    });
  }
  return found;
}

function rangeOf(document: Document, path: readonly string[]): [number, number] {
  for (let length = path.length; length > 0; length -= 1) {
    const keys = path.slice(0, length).map((key) => (/^\d+$/.test(key) ? Number(key) : key));
    const node = document.getIn(keys, true) as { range?: [number, number, number] | null } | undefined;
    if (node?.range) return [node.range[0], node.range[1]];
  }
  return [0, 0];
}
