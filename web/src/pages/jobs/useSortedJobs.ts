import { type InfiniteData, keepPreviousData, useInfiniteQuery, useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useMemo } from "react";
import { keys } from "~/api/queries";
import type { JobPage } from "~/api/types";
import type { Filters } from "./filters";
import { distinctJobs, pagesOnScreen, mergeFresh } from "./sortedPages";
import { AHEAD, readJobs, type VisibleRows } from "./useNewestJobs";

const LIVE_MS = 3_000;

type Pages = InfiniteData<JobPage, string | null>;

/**
 * The list in an order other than newest first: consecutive pages of the API. Those on screen are
 * polled, however far down they are.
 */
export function useSortedJobs(filters: Filters, visible: VisibleRows, isOn: boolean) {
  const client = useQueryClient();
  const key = [...keys.jobs, "sorted", filters];
  const query = useInfiniteQuery({
    queryKey: key,
    queryFn: ({ pageParam, signal }) => readJobs(filters, pageParam, signal),
    initialPageParam: null as string | null,
    getNextPageParam: (page) => page.next_cursor ?? undefined,
    staleTime: Number.POSITIVE_INFINITY,
    placeholderData: keepPreviousData,
    enabled: isOn,
  });
  const { data, hasNextPage, isFetching, isPlaceholderData, fetchNextPage } = query;
  const hasRows = isOn && data !== undefined && !isPlaceholderData;
  const watch = useQuery({
    queryKey: [...keys.jobs, "watched", filters],
    queryFn: async ({ signal }) => {
      const known = client.getQueryData<Pages>(key);
      if (known === undefined) return null;
      const fresh = await rereadVisible(filters, known, visible, signal);
      client.setQueryData<Pages>(key, (now) => (now === undefined ? now : mergeFresh(now, fresh)));
      return null;
    },
    refetchInterval: LIVE_MS,
    enabled: hasRows,
  });
  const jobs = useMemo(() => distinctJobs(data?.pages ?? []), [data]);
  const isNear = hasRows && hasNextPage && !isFetching && visible.to > jobs.length - AHEAD;
  useEffect(() => {
    if (isNear) void fetchNextPage();
  }, [isNear, fetchNextPage]);
  return { ...query, error: query.error ?? watch.error, jobs, isWhole: !hasNextPage };
}

/** The present pages on screen, by their cursors. */
async function rereadVisible(
  filters: Filters,
  known: Pages,
  visible: VisibleRows,
  signal: AbortSignal,
): Promise<Map<string | null, JobPage>> {
  const [first, last] = pagesOnScreen(known.pages, visible);
  const fresh = new Map<string | null, JobPage>();
  let cursor = known.pageParams[first] ?? null;
  for (let number = first; number <= last; number += 1) {
    const page = await readJobs(filters, cursor, signal);
    fresh.set(cursor, page);
    if (!page.next_cursor) break;
    cursor = page.next_cursor;
  }
  return fresh;
}
