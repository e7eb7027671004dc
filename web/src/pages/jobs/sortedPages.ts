import type { Job } from "~/api/types";

/* Pages of a sorted list, each identified by the cursor at its start. */

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
 * `known` with re-read pages. If a page now ends at another row, the pages after it are dropped and
 * read again when they come into view.
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

/** All rows without duplicates: a job that moved may be on an old page and on a re-read one. */
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
