import type { Job } from "~/api/types";

/* A long list that lives: pages are asked for again one by one and laid over what is known. */

/** Times with a fraction of any length, so that they compare as text. */
export function timeKey(iso: string): string {
  const [whole = "", fraction = ""] = iso.replace(/(Z|\+00:00)$/, "").split(".");
  return `${whole}.${fraction.padEnd(6, "0")}`;
}

function compareText(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}

/** Newest first: the order of the API. */
export function newestFirst(a: Job, b: Job): number {
  const byTime =
    a.created_at.length === b.created_at.length
      ? compareText(b.created_at, a.created_at)
      : compareText(timeKey(b.created_at), timeKey(a.created_at));
  return byTime || compareText(b.id, a.id);
}

/**
 * `rows` with one page of the list laid over them: between `after` (the row that the page's cursor stands behind; null: the
 * top) and the page's last row nothing else is there, so what the page does not have is gone.
 */
export function replacePage(rows: readonly Job[], page: { items: Job[]; isLast: boolean }, after: Job | null): Job[] {
  const last = page.items.at(-1);
  const ids = new Set(page.items.map((job) => job.id));
  const before = new Map(rows.map((job) => [job.id, job]));
  const items = page.items.map((job) => reuseEqual(before.get(job.id), job));
  const others = rows.filter((job) => {
    if (ids.has(job.id)) return false;
    if (after !== null && newestFirst(job, after) <= 0) return true;
    if (page.isLast) return false;
    return last === undefined || newestFirst(job, last) > 0;
  });
  const at = others.findIndex((job) => page.items[0] !== undefined && newestFirst(job, page.items[0]) > 0);
  return at < 0 ? [...others, ...items] : [...others.slice(0, at), ...items, ...others.slice(at)];
}

/** The object that is drawn already where nothing of it changed: its row is then not drawn again. */
function reuseEqual(before: Job | undefined, now: Job): Job {
  return before !== undefined && JSON.stringify(before) === JSON.stringify(now) ? before : now;
}

/** Where a page begins: behind the row `after` (null: at the top), whose cursor the API gave. */
export interface Anchor {
  after: Job | null;
  cursor: string | null;
}

/** `anchors`: of the pages that were read, in order; unless `isWhole`, the last is where the next one will begin. */
export interface Rows {
  jobs: Job[];
  anchors: Anchor[];
  isWhole: boolean;
}

export const PAGE = 100;
export const FIRST_PAGE: Anchor = { after: null, cursor: null };
export const EMPTY: Rows = { jobs: [], anchors: [FIRST_PAGE], isWhole: false };

/** `rows` after the page that begins at `anchor` was read. */
export function mergePage(rows: Rows, anchor: Anchor, page: { items: Job[]; next_cursor?: string | null }): Rows {
  const cursor = page.next_cursor ?? null;
  const jobs = replacePage(rows.jobs, { items: page.items, isLast: cursor === null }, anchor.after);
  const last = page.items.at(-1);
  const upTo = rows.anchors.findLastIndex((each) => isAtOrBefore(each, anchor));
  if (cursor === null || last === undefined) {
    return { jobs, anchors: rows.anchors.slice(0, upTo + 1), isWhole: true };
  }
  const next: Anchor = { after: last, cursor };
  const following = rows.anchors[upTo + 1];
  if (following === undefined && !rows.isWhole) return { jobs, anchors: [...rows.anchors, next], isWhole: false };
  // New jobs push the page's end away from where the next page once began. Once a page's worth lies between, it begins anew.
  const from = jobs.findIndex((job) => job.id === last.id);
  const to = following?.after ? jobs.findIndex((job) => job.id === following.after?.id) : jobs.length - 1;
  if (to - from < PAGE) return { ...rows, jobs };
  return { ...rows, jobs, anchors: [...rows.anchors.slice(0, upTo + 1), next, ...rows.anchors.slice(upTo + 1)] };
}

/** Where the page begins that the row number `index` is on. */
export function pageAt(rows: Rows, index: number): Anchor {
  const row = rows.jobs[index];
  if (row === undefined) return FIRST_PAGE;
  return rows.anchors.findLast((each) => each.after === null || newestFirst(each.after, row) < 0) ?? FIRST_PAGE;
}

function isAtOrBefore(first: Anchor, other: Anchor): boolean {
  if (first.after === null) return true;
  return other.after !== null && newestFirst(first.after, other.after) <= 0;
}
