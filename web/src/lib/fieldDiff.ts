/* Specs side by side, field by field. */

export interface Row {
  path: string;
  values: (string | undefined)[];
  isDifferent: boolean;
}

/** Every field of any of `things`, by its path; undefined where one has none. */
export function difference(things: readonly object[]): Row[] {
  const flat = things.map((thing) => flattened(thing));
  const paths = [...new Set(flat.flatMap((each) => [...each.keys()]))].sort();
  return paths.map((path) => {
    const values = flat.map((each) => each.get(path));
    return { path, values, isDifferent: new Set(values).size > 1 };
  });
}

function flattened(thing: unknown, path = "", into = new Map<string, string>()): Map<string, string> {
  if (thing === null || thing === undefined) return into;
  if (Array.isArray(thing)) {
    if (thing.length > 0)
      into.set(path, thing.map((item) => (typeof item === "object" ? JSON.stringify(item) : String(item))).join(" "));
  } else if (typeof thing === "object") {
    for (const [key, value] of Object.entries(thing)) flattened(value, path ? `${path}.${key}` : key, into);
  } else {
    into.set(path, String(thing));
  }
  return into;
}
