import { infiniteQueryOptions, keepPreviousData, queryOptions } from "@tanstack/react-query";
import { readPages } from "./paging";
import { api, unwrap } from "./client";

/* Reads of the planner's state. Every mutation invalidates `plannerKeys.all`. */

export const plannerKeys = {
  all: ["planner"] as const,
  queue: (project: string) => ["planner", "queue", project] as const,
  running: ["planner", "running"] as const,
  shares: ["planner", "shares"] as const,
  quota: (project: string) => ["planner", "quota", project] as const,
  policy: ["planner", "policy"] as const,
  reservations: ["planner", "reservations"] as const,
  whatIf: ["planner", "what-if"] as const,
  simulation: (id: string) => ["planner", "simulation", id] as const,
  explanation: (job: string, at: string | null) => ["planner", "explanation", job, at] as const,
};

const LIVE_MS = 5_000;
const PAGE = 50;
const MANY = 1_000;

/** Waiting jobs in queue order, of one project, or of all projects if it is empty. */
export const queueQuery = (project: string) =>
  infiniteQueryOptions({
    queryKey: plannerKeys.queue(project),
    queryFn: ({ pageParam }) => {
      const query = { limit: PAGE, ...(project ? { project } : {}), ...(pageParam ? { cursor: pageParam } : {}) };
      return unwrap(api.GET("/api/v1/queue", { params: { query } }));
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
    readPages(MANY, (cursor) =>
      unwrap(api.GET("/api/v1/queue/running", { params: { query: { limit: 200, ...(cursor ? { cursor } : {}) } } })),
    ),
  refetchInterval: LIVE_MS,
});

export const sharesQuery = queryOptions({
  queryKey: plannerKeys.shares,
  queryFn: () => unwrap(api.GET("/api/v1/shares")),
  refetchInterval: LIVE_MS,
});

export const quotaQuery = (project: string) =>
  queryOptions({
    queryKey: plannerKeys.quota(project),
    queryFn: () => unwrap(api.GET("/api/v1/projects/{project}/quota", { params: { path: { project } } })),
    refetchInterval: LIVE_MS,
  });

export const policyQuery = queryOptions({
  queryKey: plannerKeys.policy,
  queryFn: () => unwrap(api.GET("/api/v1/policy")),
});

export const reservationsQuery = queryOptions({
  queryKey: plannerKeys.reservations,
  queryFn: () =>
    readPages(MANY, (cursor) =>
      unwrap(api.GET("/api/v1/reservations", { params: { query: { limit: 200, ...(cursor ? { cursor } : {}) } } })),
    ),
  refetchInterval: LIVE_MS,
});

/** A waiting job, or a valid spec. */
export type WhatIfSubject = { job: string } | { spec: object };

/** A merge patch of the job's spec, and the cluster's nodes where they differ. */
export interface WhatIfChanges {
  changes: Record<string, unknown>;
  cluster: { more_nodes: number; like: string | null; without: string[] } | null;
}

let before: Promise<unknown> = Promise.resolve();

/** The API limits concurrent planner questions per user, so they are sent one after the other. */
function oneAtATime<T>(ask: () => Promise<T>): Promise<T> {
  const answer = before.then(ask, ask);
  before = answer.catch(() => undefined);
  return answer;
}

/** Forecast for a job with changes to its spec or to the cluster. Repeated only on request. */
export const whatIfQuery = (subject: WhatIfSubject, { changes, cluster }: WhatIfChanges) =>
  queryOptions({
    queryKey: [...plannerKeys.whatIf, subject, changes, cluster],
    queryFn: ({ signal }) => {
      const body = "job" in subject ? { job: subject.job } : { spec: subject.spec as Record<string, unknown> };
      return oneAtATime(() => unwrap(api.POST("/api/v1/forecasts", { body: { ...body, changes, cluster }, signal })));
    },
    staleTime: Number.POSITIVE_INFINITY,
    gcTime: 60_000,
  });

/** Why a job waited at a time; the answer about the past never changes. */
export const explanationQuery = (job: string, at: string | null) =>
  queryOptions({
    queryKey: plannerKeys.explanation(job, at),
    queryFn: () => {
      const query = at === null ? {} : { at };
      return oneAtATime(() => unwrap(api.GET("/api/v1/jobs/{job}/explanation", { params: { path: { job }, query } })));
    },
    enabled: at !== null,
    staleTime: Number.POSITIVE_INFINITY,
    gcTime: 60_000,
  });

const SIMULATION_MS = 1_000;

/** State of a simulation, polled until it is done or has failed. */
export const simulationQuery = (simulation: string) =>
  queryOptions({
    queryKey: plannerKeys.simulation(simulation),
    queryFn: () => unwrap(api.GET("/api/v1/simulations/{simulation}", { params: { path: { simulation } } })),
    refetchInterval: ({ state }) => (state.error !== null || state.data?.state === "done" ? false : SIMULATION_MS),
    staleTime: ({ state }) => (state.data?.state === "done" ? Number.POSITIVE_INFINITY : 0),
  });
