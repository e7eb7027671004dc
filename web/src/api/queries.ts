import { infiniteQueryOptions, keepPreviousData, queryOptions } from "@tanstack/react-query";
import { upTo } from "./allPages";
import { api, got } from "./client";
import type { MetricObject } from "./types";

/* One place for every read. Whoever changes a noun invalidates `keys.<noun>`. Asking again is cheap: the browser sends the
 * ETag along and an unchanged answer has no body. */

export const keys = {
  me: ["me"] as const,
  health: ["health"] as const,
  jobs: ["jobs"] as const,
  job: (id: string) => ["job", id] as const,
  nodes: ["nodes"] as const,
  charts: ["charts"] as const,
  checkpoint: (job: string, path: string) => ["checkpoint", job, path] as const,
  metrics: (jobs: readonly string[], name: string, by: string) => ["charts", jobs, name, by] as const,
  metricsOf: (job: string) => ["metrics", job] as const,
  metricNames: (job: string, system: boolean) => ["metrics", job, "names", system] as const,
  projects: ["projects"] as const,
  users: ["users"] as const,
  tokens: ["tokens"] as const,
  volumes: ["volumes"] as const,
};

const LIVE_MS = 2_000;
const CALM_MS = 10_000;
const MANY = 1_000; // of a list that is shown whole; what is longer is cut, and says so

export const meQuery = queryOptions({
  queryKey: keys.me,
  queryFn: () => got(api.GET("/api/v1/me")),
  staleTime: 60_000,
});

export const healthQuery = queryOptions({
  queryKey: keys.health,
  queryFn: () => got(api.GET("/api/v1/health")),
  refetchInterval: CALM_MS,
});

export const jobQuery = (id: string) =>
  queryOptions({
    queryKey: keys.job(id),
    queryFn: () => got(api.GET("/api/v1/jobs/{job}", { params: { path: { job: id } } })),
    refetchInterval: (query) => (query.state.data && isOver(query.state.data.state) ? CALM_MS : LIVE_MS),
  });

/** What the planner would do with a spec now. A spec that was written is checked by then. */
export const forecastQuery = (spec: object | null) =>
  queryOptions({
    queryKey: ["forecast", spec],
    queryFn: ({ signal }) =>
      got(api.POST("/api/v1/forecasts", { body: { spec: (spec ?? {}) as Record<string, unknown> }, signal })),
    refetchInterval: CALM_MS,
    placeholderData: keepPreviousData,
    enabled: spec !== null,
    gcTime: 60_000,
  });

/** What would let a job that waits start now. */
export const jobForecastQuery = (id: string, isWaiting: boolean) =>
  queryOptions({
    queryKey: [...keys.job(id), "forecast"],
    queryFn: () => got(api.GET("/api/v1/jobs/{job}/forecast", { params: { path: { job: id } } })),
    refetchInterval: CALM_MS,
    enabled: isWaiting,
    retry: false,
  });

export const attemptsQuery = (id: string) =>
  queryOptions({
    queryKey: [...keys.job(id), "attempts"],
    queryFn: () =>
      upTo(MANY, (cursor) =>
        got(
          api.GET("/api/v1/jobs/{job}/attempts", {
            params: { path: { job: id }, query: { limit: 200, ...from(cursor ?? "") } },
          }),
        ),
      ),
    refetchInterval: 5_000,
  });

export const checkpointsQuery = (id: string) =>
  queryOptions({
    queryKey: [...keys.job(id), "checkpoints"],
    queryFn: () =>
      upTo(MANY, (cursor) => {
        const query = { limit: 200, incomplete: true, ...from(cursor ?? "") };
        return got(api.GET("/api/v1/jobs/{job}/checkpoints", { params: { path: { job: id }, query } }));
      }),
    refetchInterval: CALM_MS,
  });

export const filesQuery = (id: string, path: string) =>
  queryOptions({
    queryKey: [...keys.job(id), "files", path],
    queryFn: () =>
      upTo(5 * MANY, (cursor) => {
        const query = { path, limit: 1000, ...from(cursor ?? "") };
        return got(api.GET("/api/v1/jobs/{job}/files", { params: { path: { job: id }, query } }));
      }),
    refetchInterval: CALM_MS,
  });

export const logSourcesQuery = (id: string) =>
  queryOptions({
    queryKey: [...keys.job(id), "logs"],
    queryFn: () =>
      upTo(5 * MANY, (cursor) =>
        got(
          api.GET("/api/v1/jobs/{job}/logs", {
            params: { path: { job: id }, query: { limit: 200, ...from(cursor ?? "") } },
          }),
        ),
      ),
    refetchInterval: 5_000,
  });

export const nodesQuery = queryOptions({
  queryKey: keys.nodes,
  queryFn: () => all((cursor) => got(api.GET("/api/v1/nodes", { params: { query: page(cursor) } }))),
  refetchInterval: LIVE_MS,
});

export const projectsQuery = queryOptions({
  queryKey: keys.projects,
  queryFn: () => all((cursor) => got(api.GET("/api/v1/projects", { params: { query: page(cursor) } }))),
});

export const projectQuery = (project: string) =>
  queryOptions({
    queryKey: [...keys.projects, project],
    queryFn: () => got(api.GET("/api/v1/projects/{project}", { params: { path: { project } } })),
  });

export const membersQuery = (project: string) =>
  queryOptions({
    queryKey: [...keys.projects, project, "members"],
    queryFn: () =>
      all((cursor) =>
        got(api.GET("/api/v1/projects/{project}/members", { params: { path: { project }, query: page(cursor) } })),
      ),
  });

export const secretsQuery = (project: string) =>
  queryOptions({
    queryKey: [...keys.projects, project, "secrets"],
    queryFn: () =>
      all((cursor) =>
        got(api.GET("/api/v1/projects/{project}/secrets", { params: { path: { project }, query: page(cursor) } })),
      ),
  });

export const usersQuery = queryOptions({
  queryKey: keys.users,
  queryFn: () => all((cursor) => got(api.GET("/api/v1/users", { params: { query: page(cursor) } }))),
});

export const tokensQuery = queryOptions({
  queryKey: keys.tokens,
  queryFn: () => all((cursor) => got(api.GET("/api/v1/tokens", { params: { query: page(cursor) } }))),
});

export const volumesQuery = queryOptions({
  queryKey: keys.volumes,
  queryFn: () => all((cursor) => got(api.GET("/api/v1/volumes", { params: { query: page(cursor) } }))),
});

export function isOver(state: string): boolean {
  return ["succeeded", "failed", "cancelled", "expired"].includes(state);
}

function page(cursor: string | null): { limit: number; cursor?: string } {
  return cursor === null ? { limit: 200 } : { limit: 200, cursor };
}

/** All pages of a list that people wrote by hand, so short. */
async function all<T>(
  read: (cursor: string | null) => Promise<{ items: T[]; next_cursor?: string | null }>,
): Promise<T[]> {
  const found: T[] = [];
  let cursor: string | null = null;
  do {
    const next = await read(cursor);
    found.push(...next.items);
    cursor = next.next_cursor ?? null;
  } while (cursor !== null);
  return found;
}

/** Who holds what on the nodes. */
export const holdersQuery = queryOptions({
  queryKey: [...keys.nodes, "holders"],
  queryFn: () => all((cursor) => got(api.GET("/api/v1/holders", { params: { query: page(cursor) } }))),
  refetchInterval: LIVE_MS,
});

/** The newest of the jobs that wait. */
export const waitingQuery = queryOptions({
  queryKey: [...keys.jobs, "waiting"],
  queryFn: () => got(api.GET("/api/v1/jobs", { params: { query: { state: ["queued"], limit: 10 } } })),
  refetchInterval: LIVE_MS,
});

/** Series of a job's metrics, each with its newest value; `system`: of what the platform measures itself. */
export const metricSeriesQuery = (job: string, system: boolean) =>
  queryOptions({
    queryKey: [...keys.metricsOf(job), "series", system],
    queryFn: () => {
      const query = { kind: "scalar" as const, system, ...(system ? { prefix: "system/" } : {}) };
      return all((cursor) =>
        got(api.GET("/api/v1/jobs/{job}/metrics", { params: { path: { job }, query: { ...query, ...page(cursor) } } })),
      );
    },
    staleTime: 5_000,
  });

const FEW_SERIES = 100;

/** The first of a job's series, for who wants to see at a glance how it goes. */
export const fewSeriesQuery = (job: string, isWanted: boolean, isOver: boolean) =>
  queryOptions({
    queryKey: [...keys.metricsOf(job), "few"],
    queryFn: () => {
      const query = { kind: "scalar" as const, system: false, limit: FEW_SERIES };
      return got(api.GET("/api/v1/jobs/{job}/metrics", { params: { path: { job }, query } }));
    },
    enabled: isWanted,
    refetchInterval: isOver ? false : 5_000,
  });

/** What they are called, of every kind: of a gang of many replicas far less than their series. */
const namesQuery = (job: string, system: boolean) =>
  queryOptions({
    queryKey: keys.metricNames(job, system),
    queryFn: () => {
      const query = { system, limit: 1000, ...(system ? { prefix: "system/" } : {}) };
      return all((cursor) =>
        got(
          api.GET("/api/v1/jobs/{job}/metrics/names", {
            params: { path: { job }, query: { ...query, ...from(cursor ?? "") } },
          }),
        ),
      );
    },
    staleTime: 5_000,
  });

/** The names of what is a number. */
export const metricNamesQuery = (job: string, system: boolean) =>
  queryOptions({
    ...namesQuery(job, system),
    select: (found) => found.filter(({ kind }) => kind === "scalar").map(({ name }) => name),
  });

/** Where the code of two jobs differs; archives never change. */
export const codeDifferenceQuery = (job: string, other: string) =>
  queryOptions({
    queryKey: [...keys.job(job), "code", other],
    queryFn: () => got(api.GET("/api/v1/jobs/{job}/code/diff", { params: { path: { job }, query: { other } } })),
    staleTime: Number.POSITIVE_INFINITY,
  });

export const resourcesQuery = (job: string) =>
  queryOptions({
    queryKey: [...keys.metricsOf(job), "resources"],
    queryFn: () => got(api.GET("/api/v1/jobs/{job}/resources", { params: { path: { job } } })),
    refetchInterval: 5_000,
  });

const nextCursor = (page: { next_cursor?: string | null }): string | undefined => page.next_cursor ?? undefined;
const from = (cursor: string): { cursor?: string } => (cursor ? { cursor } : {});

export const tensorsQuery = (job: string, path: string, search: string, kind: "" | "weight" | "optimizer") =>
  infiniteQueryOptions({
    queryKey: [...keys.checkpoint(job, path), "tensors", search, kind],
    queryFn: ({ pageParam }) => {
      const query = { path, limit: 200, ...from(pageParam), ...(search ? { search } : {}), ...(kind ? { kind } : {}) };
      return got(api.GET("/api/v1/jobs/{job}/checkpoints/tensors", { params: { path: { job }, query } }));
    },
    initialPageParam: "",
    getNextPageParam: nextCursor,
    placeholderData: keepPreviousData,
    staleTime: 60_000,
  });

export const statisticsQuery = (job: string, path: string) =>
  infiniteQueryOptions({
    queryKey: [...keys.checkpoint(job, path), "statistics"],
    queryFn: ({ pageParam }) => {
      const query = { path, limit: 200, ...from(pageParam) };
      return got(api.GET("/api/v1/jobs/{job}/checkpoints/statistics", { params: { path: { job }, query } }));
    },
    initialPageParam: "",
    getNextPageParam: nextCursor,
    staleTime: Number.POSITIVE_INFINITY,
  });

/** From a checkpoint of `job` to one of `otherJob`, which may be the same. */
export const differenceQuery = (job: string, path: string, other: string, otherJob: string) =>
  infiniteQueryOptions({
    queryKey: [...keys.checkpoint(job, path), "difference", otherJob, other],
    queryFn: ({ pageParam }) => {
      const query = {
        path,
        other,
        limit: 200,
        ...(otherJob === job ? {} : { other_job: otherJob }),
        ...from(pageParam),
      };
      return got(api.GET("/api/v1/jobs/{job}/checkpoints/diff", { params: { path: { job }, query } }));
    },
    initialPageParam: "",
    getNextPageParam: nextCursor,
    staleTime: Number.POSITIVE_INFINITY,
  });

/** What a job told of besides numbers: histograms, images and texts, by name. */
export const objectSeriesQuery = (job: string) =>
  queryOptions({
    ...namesQuery(job, false),
    select: (found) => found.filter(({ kind }) => kind !== "scalar"),
  });

export const metricObjectsQuery = (job: string, name: string, kind: MetricObject["kind"]) =>
  queryOptions({
    queryKey: [...keys.metricsOf(job), "objects", kind, name],
    queryFn: () =>
      upTo(MANY, (cursor) => {
        const query = { name, kind, limit: 200, ...from(cursor ?? "") };
        return got(api.GET("/api/v1/jobs/{job}/metrics/objects", { params: { path: { job }, query } }));
      }),
    staleTime: 5_000,
  });
