/* What the list of jobs shows, as it stands in the address. */

export interface Filters {
  q?: string;
  state?: string;
  project?: string;
  user?: string;
  label?: string;
  study?: string;
  sort?: string;
}

/** What else the address of the list holds: the ids of the jobs that are chosen. */
export interface JobsSearch extends Filters {
  chosen?: string;
}

const NAMES = ["q", "state", "project", "user", "label", "study", "sort"] as const;

export function readFilters(search: Record<string, unknown>): Filters {
  const filters: Filters = {};
  for (const name of NAMES) {
    const value = search[name];
    if (value !== undefined && value !== null && String(value) !== "") filters[name] = String(value);
  }
  return filters;
}

export function readJobsSearch(search: Record<string, unknown>): JobsSearch {
  const chosen = search["chosen"];
  return { ...readFilters(search), ...(typeof chosen === "string" && chosen !== "" ? { chosen } : {}) };
}

export const SORTS = ["newest", "oldest", "name", "priority", "state", "started", "gpus", "user"] as const;
export type Sort = (typeof SORTS)[number];

export function isSort(text: string | undefined): text is Sort {
  return SORTS.some((sort) => sort === text);
}

export const splitList = (value: string | undefined): string[] => (value ? value.split(",").filter(Boolean) : []);

/** These filters with some of them changed; one without a value is none. */
export const withChanges = <F extends object>(before: F, change: { [name in keyof F]?: F[name] | undefined }): F =>
  Object.fromEntries(Object.entries({ ...before, ...change }).filter(([, value]) => value)) as F;

/** `value` put into a comma-separated filter, or taken out where it was in. */
export function toggled(value: string | undefined, item: string): string | undefined {
  const items = splitList(value);
  const next = items.includes(item) ? items.filter((each) => each !== item) : [...items, item];
  return next.length > 0 ? next.join(",") : undefined;
}
