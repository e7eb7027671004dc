/* Filters, order and selection of the job list, as stored in the address. */

export interface Filters {
  q?: string;
  state?: string;
  project?: string;
  user?: string;
  label?: string;
  study?: string;
  sort?: string;
}

/** All search parameters of the list: filters, and the ids of the chosen jobs. */
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
