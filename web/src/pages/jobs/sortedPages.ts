import type { Job } from "~/api/types";

/* Pages of a list in an order of its own, each known by the cursor that it begins at. */

export interface SortedPage {
  items: Job[];
  next_cursor?: string | null;
}

export interface SortedPages<Page extends SortedPage = SortedPage> {
  pages: Page[];
  pageParams: (string | null)[];
}

/** The numbers of the first and the last page that rows on screen are on. */
export function pagesOnScreen(pages: readonly SortedPage[], visible: { from: number; to: number }): [number, number] {
  const at = (row: number) => {
    let rows = 0;
    const found = pages.findIndex((page) => (rows += page.items.length) > row);
    return found < 0 ? Math.max(0, pages.length - 1) : found;
  };
  return [at(visible.from), at(visible.to)];
}

/**
 * `known` with pages that were read again. Where one of them ends elsewhere than it did, what was known behind it is left
 * out: it is read anew when it comes into sight.
 */
export function mergeFresh<Page extends SortedPage>(
  known: SortedPages<Page>,
  fresh: ReadonlyMap<string | null, Page>,
): SortedPages<Page> {
  const merged: SortedPages<Page> = { pages: [], pageParams: [] };
  let cursor: string | null = known.pageParams[0] ?? null;
  for (;;) {
    const number = known.pageParams.indexOf(cursor);
    const page = fresh.get(cursor) ?? known.pages[number];
    if (page === undefined) return merged;
    merged.pages.push(page);
    merged.pageParams.push(cursor);
    if (!page.next_cursor) return merged;
    cursor = page.next_cursor;
  }
}

/** All rows, each once: a job that has moved may stand on a page from before and on one that was read again. */
export function distinctJobs(pages: readonly SortedPage[]): Job[] {
  const newest = new Map<string, Job>();
  for (const job of pages.flatMap((page) => page.items)) {
    const other = newest.get(job.id);
    if (other === undefined || (other.generation ?? 0) < (job.generation ?? 0)) newest.set(job.id, job);
  }
  const emitted = new Set<string>();
  return pages
    .flatMap((page) => page.items)
    .filter((job) => newest.get(job.id) === job && !emitted.has(job.id) && emitted.add(job.id));
}
