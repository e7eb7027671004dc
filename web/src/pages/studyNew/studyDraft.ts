import { type Document, isMap, isPair, isScalar, parse, Scalar, stringify } from "yaml";
import { plainValues, readYaml } from "~/lib/yaml/yamlDraft";

/* A study's YAML as read and written by its form. The text is the source of truth: comments and order are preserved. */

export type Path = readonly string[];

export interface ParameterRow {
  name: string;
  type: string;
  min: string;
  max: string;
  scale: string;
  /** As typed: `sgd, adam`. */
  values: string;
  /** `optimizer=sgd|adam`, several separated by commas. */
  when: string;
}

/** The value at a path, as a person would type it; empty if there is none. */
export function textAt(document: Document, path: Path): string {
  const value = plainAt(document, path);
  if (value === undefined || value === null) return "";
  return typeof value === "object" ? JSON.stringify(value) : written(document, path, value);
}

/** A number as written in the text, so that 0.00001 does not turn into 1e-5 while typing. */
function written(document: Document, path: Path, value: unknown): string {
  const node: unknown = document.getIn(path, true);
  return isScalar(node) && typeof value === "number" && node.source ? node.source : String(value);
}

function plainAt(document: Document, path: Path): unknown {
  let value = plainValues(document);
  for (const step of path)
    value = typeof value === "object" && value !== null ? (value as Record<string, unknown>)[step] : undefined;
  return value;
}

/** The text with the value at a path set, or removed if it is empty. A text with syntax errors stays unchanged. */
export function withAt(text: string, path: Path, value: unknown): string {
  const document = readYaml(text);
  if (document.errors.length > 0) return text;
  if (document.contents === null) document.contents = document.createNode({}) as never;
  if (!isMap(document.contents)) return text;
  if (value === "" || value === undefined) {
    if (document.hasIn(path)) document.deleteIn(path);
  } else {
    // Expand `stopping: asha`, which is short for its rule, to a map.
    for (let length = 1; length < path.length; length += 1) {
      const at = path.slice(0, length);
      if (!isMap(document.getIn(at)))
        document.setIn(at, document.createNode({}, { flow: length > 1 || at[0] !== "parameters" }));
    }
    const node: unknown = document.getIn(path, true);
    // Set in place, so that a comment after the old value stays.
    if (isScalar(node) && typeof value !== "object") {
      node.value = value;
      delete node.source;
      delete node.format;
      if (typeof value === "string") delete node.type;
    } else document.setIn(path, Array.isArray(value) ? document.createNode(value, { flow: true }) : value);
  }
  return document.toString({ lineWidth: 0, flowCollectionPadding: false });
}

/** The typed text as a number if it is one, else as text. */
export function typed(text: string): string | number {
  const trimmed = text.trim();
  return trimmed !== "" && /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(trimmed) ? Number(trimmed) : trimmed;
}

/** The parameters in the order of the text. */
export function parametersOf(document: Document): ParameterRow[] {
  const parameters: unknown = document.get("parameters");
  if (!isMap(parameters)) return [];
  return parameters.items.filter(isPair).map((pair) => {
    const name = String(isScalar(pair.key) ? pair.key.value : pair.key);
    const at = (field: string) => textAt(document, ["parameters", name, field]);
    return {
      name,
      type: at("type") || "float",
      min: at("min"),
      max: at("max"),
      scale: at("scale") || "linear",
      values: listText(plainAt(document, ["parameters", name, "values"])),
      when: whenText(plainAt(document, ["parameters", name, "when"])),
    };
  });
}

const isRange = (type: string): boolean => type === "float" || type === "integer";

/** Sets a field of a parameter. A new type removes fields that do not apply to it. */
export function withParameter(text: string, name: string, field: keyof ParameterRow, value: string): string {
  const at = ["parameters", name];
  switch (field) {
    case "name":
      return withName(text, name, value);
    case "type": {
      const useless = isRange(value) ? ["values"] : ["min", "max", "scale", "steps"];
      return useless.reduce((now, each) => withAt(now, [...at, each], ""), withAt(text, [...at, "type"], value));
    }
    case "scale":
      return withAt(text, [...at, "scale"], value === "linear" ? "" : value);
    case "values":
      return withAt(text, [...at, "values"], value.trim() === "" ? "" : listOf(value));
    case "when":
      return withWhen(text, at, value);
    default:
      return withAt(text, [...at, field], typed(value));
  }
}

function withWhen(text: string, at: Path, value: string): string {
  const when = whenOf(value);
  const without = withAt(text, [...at, "when"], "");
  return Object.keys(when).length === 0 ? without : withFlow(without, [...at, "when"], when);
}

function withFlow(text: string, path: Path, value: object): string {
  const document = readYaml(text);
  if (document.errors.length > 0) return text;
  document.setIn(path, document.createNode(value, { flow: true }));
  return document.toString({ lineWidth: 0, flowCollectionPadding: false });
}

/** Renames a parameter, also in conditions of others. An existing or empty name changes nothing. */
function withName(text: string, name: string, next: string): string {
  const document = readYaml(text);
  const parameters: unknown = document.get("parameters");
  if (document.errors.length > 0 || !isMap(parameters) || next.trim() === "" || parameters.has(next)) return text;
  for (const pair of parameters.items) {
    if (isScalar(pair.key) && String(pair.key.value) === name) pair.key.value = next;
    const when: unknown = isMap(pair.value) ? pair.value.get("when") : undefined;
    if (isMap(when))
      for (const item of when.items) if (isScalar(item.key) && item.key.value === name) item.key.value = next;
  }
  return document.toString({ lineWidth: 0, flowCollectionPadding: false });
}

export function withoutParameter(text: string, name: string): string {
  return withAt(text, ["parameters", name], "");
}

/** Adds a parameter with an unused name. */
export function withNewParameter(text: string): string {
  const document = readYaml(text);
  if (document.errors.length > 0) return text;
  const taken = parametersOf(document).map((row) => row.name);
  let number = taken.length + 1;
  while (taken.includes(`p${number}`)) number += 1;
  return withFlow(text, ["parameters", `p${number}`], { type: "float", min: 0, max: 1 });
}

/** `sgd, adam` or `[16, 32]` as a list. */
export function listOf(text: string): unknown[] {
  const inner = text.trim().replace(/^\[|\]$/g, "");
  try {
    const found: unknown = parse(`[${inner}]`);
    if (Array.isArray(found)) return found.filter((item) => item !== null);
  } catch {
    // Not valid YAML: split at commas.
  }
  return inner
    .split(",")
    .map((item) => item.trim())
    .filter(Boolean);
}

function listText(value: unknown): string {
  if (value === undefined || value === null) return "";
  return (Array.isArray(value) ? value : [value]).map(itemText).join(", ");
}

/** An item of a YAML list: text that looks like a number keeps its quotes. */
function itemText(item: unknown): string {
  const scalar = new Scalar(item);
  return stringify([scalar], { lineWidth: 0, flowCollectionPadding: false, collectionStyle: "flow" })
    .trim()
    .slice(1, -1);
}

/** `optimizer=sgd|adam, depth=2` as a map. */
export function whenOf(text: string): Record<string, unknown> {
  const found: Record<string, unknown> = {};
  for (const part of text.split(",")) {
    const [name, ...rest] = part.split("=");
    const values = rest.join("=").split("|").flatMap(listOf);
    if (!name?.trim() || values.length === 0) continue;
    found[name.trim()] = values.length === 1 ? values[0] : values;
  }
  return found;
}

function whenText(value: unknown): string {
  if (typeof value !== "object" || value === null) return "";
  return Object.entries(value)
    .map(([name, values]) => `${name}=${(Array.isArray(values) ? values : [values]).map(itemText).join("|")}`)
    .join(", ");
}
