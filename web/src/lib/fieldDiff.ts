/* Field-by-field comparison of objects. */

export interface FieldRow {
  path: string;
  values: (string | undefined)[];
  isDifferent: boolean;
}

/** Every field of any of `objects`, by its path; undefined where an object has none. */
export function fieldDiff(objects: readonly object[]): FieldRow[] {
  const flat = objects.map((value) => flatten(value));
  const paths = [...new Set(flat.flatMap((each) => [...each.keys()]))].sort();
  return paths.map((path) => {
    const values = flat.map((each) => each.get(path));
    return { path, values, isDifferent: new Set(values).size > 1 };
  });
}

function flatten(value: unknown, path = "", fields = new Map<string, string>()): Map<string, string> {
  if (value === null || value === undefined) return fields;
  if (Array.isArray(value)) {
    if (value.length > 0)
      fields.set(path, value.map((item) => (typeof item === "object" ? JSON.stringify(item) : String(item))).join(" "));
  } else if (typeof value === "object") {
    for (const [key, item] of Object.entries(value)) flatten(item, path ? `${path}.${key}` : key, fields);
  } else {
    fields.set(path, String(value));
  }
  return fields;
}
