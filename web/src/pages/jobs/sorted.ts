import { keepPreviousData, useInfiniteQuery } from "@tanstack/react-query";
import { useEffect } from "react";
import { keys } from "~/api/queries";
import type { Filters } from "~/lib/filters";
import { AHEAD, readJobs, type Seen } from "./list";

const CALM_MS = 5_000;
const WATCHED = 3; // pages that are asked for again; who scrolled further looks at what was

/** The list in another order than the newest first: pages one after the other, as the API cuts them. */
export function useSortedJobs(filters: Filters, seen: Seen, isOn: boolean) {
  const query = useInfiniteQuery({
    queryKey: [...keys.jobs, "sorted", filters],
    queryFn: ({ pageParam, signal }) => readJobs(filters, pageParam, signal),
    initialPageParam: null as string | null,
    getNextPageParam: (page) => page.next_cursor ?? undefined,
    refetchInterval: (own) => ((own.state.data?.pages.length ?? 0) <= WATCHED ? CALM_MS : false),
    placeholderData: keepPreviousData,
    enabled: isOn,
  });
  const jobs = query.data?.pages.flatMap((page) => page.items) ?? [];
  const { hasNextPage, isFetching, fetchNextPage } = query;
  const isNear = isOn && hasNextPage && !isFetching && seen.to > jobs.length - AHEAD;
  useEffect(() => {
    if (isNear) void fetchNextPage();
  }, [isNear, fetchNextPage]);
  return { ...query, jobs, isWhole: !hasNextPage };
}
