import type { Job } from "~/api/types";

/* A long, live list: pages are re-read one by one and merged into the known rows. */

/** A time with its fraction padded, so that times compare as text. */
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
 * `rows` with one page of the list replaced: the page covers everything between `after` (the row before its cursor;
 * null: the top) and its last row, so other rows in between are gone.
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

/** The previous object if it is equal, so that its row is not rendered again. */
function reuseEqual(before: Job | undefined, now: Job): Job {
  return before !== undefined && JSON.stringify(before) === JSON.stringify(now) ? before : now;
}

/** Start of a page: after the row `after` (null: at the top), with the API's cursor. */
export interface Anchor {
  after: Job | null;
  cursor: string | null;
}

/** `anchors`: starts of the pages read, in order; unless `isWhole`, the last is the start of the next page. */
export interface Rows {
  jobs: Job[];
  anchors: Anchor[];
  isWhole: boolean;
}

export const PAGE = 100;
export const FIRST_PAGE: Anchor = { after: null, cursor: null };
export const EMPTY: Rows = { jobs: [], anchors: [FIRST_PAGE], isWhole: false };

/** `rows` after reading the page at `anchor`. */
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
  // New jobs push the page's end away from the start of the next page. Once a full page lies between, insert an anchor.
  const from = jobs.findIndex((job) => job.id === last.id);
  const to = following?.after ? jobs.findIndex((job) => job.id === following.after?.id) : jobs.length - 1;
  if (to - from < PAGE) return { ...rows, jobs };
  return { ...rows, jobs, anchors: [...rows.anchors.slice(0, upTo + 1), next, ...rows.anchors.slice(upTo + 1)] };
}

/** Start of the page that contains row `index`. */
export function pageAt(rows: Rows, index: number): Anchor {
  const row = rows.jobs[index];
  if (row === undefined) return FIRST_PAGE;
  return rows.anchors.findLast((each) => each.after === null || newestFirst(each.after, row) < 0) ?? FIRST_PAGE;
}

function isAtOrBefore(first: Anchor, other: Anchor): boolean {
  if (first.after === null) return true;
  return other.after !== null && newestFirst(first.after, other.after) <= 0;
}
