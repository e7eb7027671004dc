/* Filters of lists in the address: comma-separated values. */

export const splitList = (value: string | undefined): string[] => (value ? value.split(",").filter(Boolean) : []);

/** The filters with changes; an empty value removes a filter. */
export const withChanges = <F extends object>(before: F, change: { [name in keyof F]?: F[name] | undefined }): F =>
  Object.fromEntries(Object.entries({ ...before, ...change }).filter(([, value]) => value)) as F;

/** Adds `item` to a comma-separated filter, or removes it. */
export function toggled(value: string | undefined, item: string): string | undefined {
  const items = splitList(value);
  const next = items.includes(item) ? items.filter((each) => each !== item) : [...items, item];
  return next.length > 0 ? next.join(",") : undefined;
}
