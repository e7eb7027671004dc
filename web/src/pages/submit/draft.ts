import { type Document, isMap, isScalar, parseDocument } from "yaml";
import type { Mistake } from "~/api/types";
import type { Diagnostic } from "~/components/editor";

/* The text is the truth; the form reads from it and writes into it, and leaves comments and order as they are. */

export const FIRST = `name: my-job
command: python train.py
workers: 2
cpu: 1
memory: 2Gi
max_restarts: 3
`;

/** The value of a field at the top, as a person would type it. */
export function valueOf(document: Document, name: string): string {
  const value = document.get(name);
  if (value === undefined || value === null) return "";
  const plain = isScalar(value) ? value.value : document.toJS()?.[name];
  if (Array.isArray(plain))
    return plain.every((word) => /^[\w@%+=:,./-]+$/.test(String(word))) ? plain.join(" ") : JSON.stringify(plain);
  return typeof plain === "object" ? JSON.stringify(plain) : String(plain);
}

/** The text with one field set, or taken out where `value` is empty. */
export function withValue(text: string, name: string, value: string): string {
  const document = parseDocument(text);
  if (document.errors.length > 0) return text;
  if (!isMap(document.contents)) return value === "" ? text : `${name}: ${value}\n`;
  if (value === "") document.delete(name);
  else document.set(name, /^-?\d+$/.test(value) ? Number(value) : value === "true" ? true : value === "false" ? false : value);
  return document.toString({ lineWidth: 0 });
}

export function readDraft(text: string): Document {
  return parseDocument(text);
}

/** The API's mistakes at the places in the text that they are about. */
export function diagnosticsOf(text: string, mistakes: readonly Mistake[]): Diagnostic[] {
  const document = parseDocument(text);
  const found: Diagnostic[] = document.errors.map((error) => ({
    from: error.pos[0],
    to: Math.max(error.pos[1], error.pos[0]),
    severity: "error",
    message: error.message.split("\n")[0] ?? error.message,
  }));
  if (found.length > 0) return found;
  for (const mistake of mistakes) {
    const [from, to] = placeOf(document, mistake.path.split(".").filter(Boolean));
    found.push({ from, to, severity: "error", message: mistake.hint ? `${mistake.message} (${mistake.hint})` : mistake.message });
  }
  return found;
}

function placeOf(document: Document, path: readonly string[]): [number, number] {
  for (let length = path.length; length > 0; length -= 1) {
    const keys = path.slice(0, length).map((key) => (/^\d+$/.test(key) ? Number(key) : key));
    const node = document.getIn(keys, true) as { range?: [number, number, number] | null } | undefined;
    if (node?.range) return [node.range[0], node.range[1]];
  }
  return [0, 0];
}
