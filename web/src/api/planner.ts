import { infiniteQueryOptions, keepPreviousData, queryOptions } from "@tanstack/react-query";
import { upTo } from "./allPages";
import type { Changes } from "~/pages/whatIf/question";
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
  whatIf: ["planner", "what-if"] as const,
  simulation: (id: string) => ["planner", "simulation", id] as const,
  explanation: (job: string, at: string | null) => ["planner", "explanation", job, at] as const,
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

/** A job that waits, or a spec that was checked. */
export type WhatIfSubject = { job: string } | { spec: object };

let before: Promise<unknown> = Promise.resolve();

/** The planner hears a few questions of one user at a time: several are asked one after the other. */
function inTurn<T>(ask: () => Promise<T>): Promise<T> {
  const answer = before.then(ask, ask);
  before = answer.catch(() => undefined);
  return answer;
}

/** What would become of a job with changes to it, or in another cluster. It is asked again only when somebody wants to know. */
export const whatIfQuery = (subject: WhatIfSubject, { changes, cluster }: Changes) =>
  queryOptions({
    queryKey: [...plannerKeys.whatIf, subject, changes, cluster],
    queryFn: ({ signal }) => {
      const body = "job" in subject ? { job: subject.job } : { spec: subject.spec as Record<string, unknown> };
      return inTurn(() => got(api.POST("/api/v1/forecasts", { body: { ...body, changes, cluster }, signal })));
    },
    staleTime: Number.POSITIVE_INFINITY,
    gcTime: 60_000,
  });

/** Why a job waited at a time; of the past the answer stays the same. */
export const explanationQuery = (job: string, at: string | null) =>
  queryOptions({
    queryKey: plannerKeys.explanation(job, at),
    queryFn: () => {
      const query = at === null ? {} : { at };
      return inTurn(() => got(api.GET("/api/v1/jobs/{job}/explanation", { params: { path: { job }, query } })));
    },
    enabled: at !== null,
    staleTime: Number.POSITIVE_INFINITY,
    gcTime: 60_000,
  });

const SIMULATION_MS = 1_000;

/** How a simulation stands, looked at until it is done or has failed. */
export const simulationQuery = (simulation: string) =>
  queryOptions({
    queryKey: plannerKeys.simulation(simulation),
    queryFn: () => got(api.GET("/api/v1/simulations/{simulation}", { params: { path: { simulation } } })),
    refetchInterval: ({ state }) => (state.error !== null || state.data?.state === "done" ? false : SIMULATION_MS),
    staleTime: ({ state }) => (state.data?.state === "done" ? Number.POSITIVE_INFINITY : 0),
  });
