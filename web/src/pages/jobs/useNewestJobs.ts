import { keepPreviousData, useQuery, useQueryClient } from "@tanstack/react-query";
import { useCallback, useEffect, useRef, useState } from "react";
import { api, unwrap } from "~/api/client";
import { keys } from "~/api/queries";
import type { JobPage, JobState } from "~/api/types";
import { splitList } from "~/lib/filters";
import { type Filters, isSort } from "./filters";
import { type Anchor, EMPTY, mergePage, PAGE, pageAt, FIRST_PAGE, type Rows } from "./newestRows";

/* The job list in the query cache: the rows of all pages read. The newest page and those on screen are
 * polled every two seconds, the others when they come into view. */

const LIVE_MS = 2_000;
export const AHEAD = 40; // rows before the end at which the next page is read

export interface VisibleRows {
  from: number;
  to: number;
}

export function useNewestJobs(filters: Filters, visible: VisibleRows, isOn: boolean) {
  const client = useQueryClient();
  const filterText = JSON.stringify(filters);
  const shown = useRef(visible);
  shown.current = visible;
  const [isMore, setMore] = useState(false);

  const query = useQuery({
    queryKey: listKey(filterText),
    queryFn: async ({ signal }) => {
      const known = client.getQueryData<Rows>(listKey(filterText)) ?? EMPTY;
      const pages = await readVisible(filters, known, shown.current, signal);
      // Rows added during the request stay.
      const now = client.getQueryData<Rows>(listKey(filterText)) ?? EMPTY;
      return pages.reduce((rows, [anchor, page]) => mergePage(rows, anchor, page), now);
    },
    refetchInterval: LIVE_MS,
    placeholderData: keepPreviousData,
    structuralSharing: false,
    enabled: isOn,
    staleTime: 0,
  });

  const rows = query.data ?? EMPTY;
  const more = useCallback(async () => {
    const end = client.getQueryData<Rows>(listKey(filterText))?.anchors.at(-1);
    if (end === undefined) return;
    setMore(true);
    try {
      const page = await read(JSON.parse(filterText) as Filters, end);
      client.setQueryData<Rows>(listKey(filterText), (now) => mergePage(now ?? EMPTY, end, page));
    } catch {
      // The next poll of the top reports the error; further scrolling retries.
    } finally {
      setMore(false);
    }
  }, [client, filterText]);

  const isNear =
    isOn &&
    query.data !== undefined &&
    !query.isPlaceholderData &&
    !rows.isWhole &&
    visible.to > rows.jobs.length - AHEAD;
  useEffect(() => {
    if (isNear && !isMore) void more();
  }, [isNear, isMore, more]);

  return { ...query, jobs: rows.jobs, isWhole: rows.isWhole };
}

function listKey(filterText: string) {
  return [...keys.jobs, "list", filterText];
}

/** The top page, and the pages of the rows on screen. */
async function readVisible(
  filters: Filters,
  known: Rows,
  visible: VisibleRows,
  signal: AbortSignal,
): Promise<[Anchor, JobPage][]> {
  const top = await read(filters, FIRST_PAGE, signal);
  const pages: [Anchor, JobPage][] = [[FIRST_PAGE, top]];
  const last = known.jobs[visible.to];
  let anchor = pageAt(known, visible.from);
  let page = top;
  if (anchor.after !== null) {
    page = await read(filters, anchor, signal);
    pages.push([anchor, page]);
  }
  while (last !== undefined && page.next_cursor && pages.length < 4) {
    const end = page.items.at(-1);
    if (end === undefined || known.jobs.findIndex((job) => job.id === end.id) >= visible.to) break;
    anchor = { after: end, cursor: page.next_cursor };
    page = await read(filters, anchor, signal);
    pages.push([anchor, page]);
  }
  return pages;
}

function read(filters: Filters, anchor: Anchor, signal?: AbortSignal): Promise<JobPage> {
  return readJobs(filters, anchor.cursor, signal);
}

export function readJobs(filters: Filters, cursor: string | null, signal?: AbortSignal): Promise<JobPage> {
  const query = {
    limit: PAGE,
    ...(filters.q ? { search: filters.q } : {}),
    ...(cursor ? { cursor } : {}),
    ...(isSort(filters.sort) ? { sort: filters.sort } : {}),
    state: splitList(filters.state) as JobState[],
    project: splitList(filters.project),
    user: splitList(filters.user),
    label: splitList(filters.label),
    study: splitList(filters.study),
  };
  return unwrap(api.GET("/api/v1/jobs", { params: { query }, ...(signal ? { signal } : {}) }));
}
