import { infiniteQueryOptions, keepPreviousData, queryOptions } from "@tanstack/react-query";
import { upTo } from "~/lib/pages";
import { api, got } from "./client";

/* Reads of what the planner shows. Whoever changes one invalidates `plannerKeys.all`. */

export const plannerKeys = {
  all: ["planner"] as const,
  queue: (project: string) => ["planner", "queue", project] as const,
  running: ["planner", "running"] as const,
  shares: ["planner", "shares"] as const,
  quota: (project: string) => ["planner", "quota", project] as const,
  policy: ["planner", "policy"] as const,
  reservations: ["planner", "reservations"] as const,
};

const LIVE_MS = 5_000;
const PAGE = 50;
const MANY = 1_000;

/** The jobs that wait, the next one first; of one project, or of all where it is empty. */
export const queueQuery = (project: string) =>
  infiniteQueryOptions({
    queryKey: plannerKeys.queue(project),
    queryFn: ({ pageParam }) => {
      const query = { limit: PAGE, ...(project ? { project } : {}), ...(pageParam ? { cursor: pageParam } : {}) };
      return got(api.GET("/api/v1/queue", { params: { query } }));
    },
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor ?? undefined,
    placeholderData: keepPreviousData,
    refetchInterval: LIVE_MS,
  });

/** The jobs that hold resources, and until when. */
export const runningQuery = queryOptions({
  queryKey: plannerKeys.running,
  queryFn: () =>
    upTo(MANY, (cursor) =>
      got(api.GET("/api/v1/queue/running", { params: { query: { limit: 200, ...(cursor ? { cursor } : {}) } } })),
    ),
  refetchInterval: LIVE_MS,
});

export const sharesQuery = queryOptions({
  queryKey: plannerKeys.shares,
  queryFn: () => got(api.GET("/api/v1/shares")),
  refetchInterval: LIVE_MS,
});

export const quotaQuery = (project: string) =>
  queryOptions({
    queryKey: plannerKeys.quota(project),
    queryFn: () => got(api.GET("/api/v1/projects/{project}/quota", { params: { path: { project } } })),
    refetchInterval: LIVE_MS,
  });

export const policyQuery = queryOptions({
  queryKey: plannerKeys.policy,
  queryFn: () => got(api.GET("/api/v1/policy")),
});

export const reservationsQuery = queryOptions({
  queryKey: plannerKeys.reservations,
  queryFn: () =>
    upTo(MANY, (cursor) =>
      got(api.GET("/api/v1/reservations", { params: { query: { limit: 200, ...(cursor ? { cursor } : {}) } } })),
    ),
  refetchInterval: LIVE_MS,
});
