import { infiniteQueryOptions, keepPreviousData, queryOptions } from "@tanstack/react-query";
import { type Page, readPages } from "./paging";
import { api, unwrap } from "./client";
import type { MetricObject } from "./types";

/* Reads of the API. A mutation of a resource invalidates `keys.<resource>`. Polling is cheap: the browser sends the
 * ETag, and an unchanged response has no body. */

export const keys = {
  me: ["me"] as const,
  health: ["health"] as const,
  jobs: ["jobs"] as const,
  job: (id: string) => ["job", id] as const,
  nodes: ["nodes"] as const,
  charts: ["charts"] as const,
  checkpoint: (job: string, path: string) => ["checkpoint", job, path] as const,
  metrics: (jobs: readonly string[], name: string, by: string) => ["charts", jobs, name, by] as const,
  jobMetrics: (job: string) => ["metrics", job] as const,
  metricNames: (job: string, system: boolean) => ["metrics", job, "names", system] as const,
  projects: ["projects"] as const,
  users: ["users"] as const,
  tokens: ["tokens"] as const,
  volumes: ["volumes"] as const,
};

const LIVE_MS = 2_000;
const CALM_MS = 10_000;
const MANY = 1_000; // items of a list that is shown whole; a longer list is cut, and the page says so

export const meQuery = queryOptions({
  queryKey: keys.me,
  queryFn: () => unwrap(api.GET("/api/v1/me")),
  staleTime: 60_000,
});

/** Identity providers by which users may log in. They are settings: the same until the platform restarts. */
export const loginProvidersQuery = queryOptions({
  queryKey: ["loginProviders"],
  queryFn: () =>
    readAllPages((cursor) => unwrap(api.GET("/api/v1/login/providers", { params: { query: pageParams(cursor) } }))),
  staleTime: Infinity,
});

export const healthQuery = queryOptions({
  queryKey: keys.health,
  queryFn: () => unwrap(api.GET("/api/v1/health")),
  refetchInterval: CALM_MS,
});

export const jobQuery = (id: string) =>
  queryOptions({
    queryKey: keys.job(id),
    queryFn: () => unwrap(api.GET("/api/v1/jobs/{job}", { params: { path: { job: id } } })),
    refetchInterval: (query) => (query.state.data && isOver(query.state.data.state) ? CALM_MS : LIVE_MS),
  });

/** What the planner would do with a valid spec now. */
export const forecastQuery = (spec: object | null) =>
  queryOptions({
    queryKey: ["forecast", spec],
    queryFn: ({ signal }) =>
      unwrap(api.POST("/api/v1/forecasts", { body: { spec: (spec ?? {}) as Record<string, unknown> }, signal })),
    refetchInterval: CALM_MS,
    placeholderData: keepPreviousData,
    enabled: spec !== null,
    gcTime: 60_000,
  });

/** Changes which would let a waiting job start now. */
export const jobForecastQuery = (id: string, isWaiting: boolean) =>
  queryOptions({
    queryKey: [...keys.job(id), "forecast"],
    queryFn: () => unwrap(api.GET("/api/v1/jobs/{job}/forecast", { params: { path: { job: id } } })),
    refetchInterval: CALM_MS,
    enabled: isWaiting,
    retry: false,
  });

export const attemptsQuery = (id: string) =>
  queryOptions({
    queryKey: [...keys.job(id), "attempts"],
    queryFn: () =>
      readPages(MANY, (cursor) =>
        unwrap(
          api.GET("/api/v1/jobs/{job}/attempts", {
            params: { path: { job: id }, query: { limit: 200, ...cursorParam(cursor ?? "") } },
          }),
        ),
      ),
    refetchInterval: 5_000,
  });

export const checkpointsQuery = (id: string) =>
  queryOptions({
    queryKey: [...keys.job(id), "checkpoints"],
    queryFn: () =>
      readPages(MANY, (cursor) => {
        const query = { limit: 200, incomplete: true, ...cursorParam(cursor ?? "") };
        return unwrap(api.GET("/api/v1/jobs/{job}/checkpoints", { params: { path: { job: id }, query } }));
      }),
    refetchInterval: CALM_MS,
  });

export const filesQuery = (id: string, path: string) =>
  queryOptions({
    queryKey: [...keys.job(id), "files", path],
    queryFn: () =>
      readPages(5 * MANY, (cursor) => {
        const query = { path, limit: 1000, ...cursorParam(cursor ?? "") };
        return unwrap(api.GET("/api/v1/jobs/{job}/files", { params: { path: { job: id }, query } }));
      }),
    refetchInterval: CALM_MS,
  });

export const logSourcesQuery = (id: string) =>
  queryOptions({
    queryKey: [...keys.job(id), "logs"],
    queryFn: () =>
      readPages(5 * MANY, (cursor) =>
        unwrap(
          api.GET("/api/v1/jobs/{job}/logs", {
            params: { path: { job: id }, query: { limit: 200, ...cursorParam(cursor ?? "") } },
          }),
        ),
      ),
    refetchInterval: 5_000,
  });

export const nodesQuery = queryOptions({
  queryKey: keys.nodes,
  queryFn: () => readAllPages((cursor) => unwrap(api.GET("/api/v1/nodes", { params: { query: pageParams(cursor) } }))),
  refetchInterval: LIVE_MS,
});

export const projectsQuery = queryOptions({
  queryKey: keys.projects,
  queryFn: () =>
    readAllPages((cursor) => unwrap(api.GET("/api/v1/projects", { params: { query: pageParams(cursor) } }))),
});

export const projectQuery = (project: string) =>
  queryOptions({
    queryKey: [...keys.projects, project],
    queryFn: () => unwrap(api.GET("/api/v1/projects/{project}", { params: { path: { project } } })),
  });

export const membersQuery = (project: string) =>
  queryOptions({
    queryKey: [...keys.projects, project, "members"],
    queryFn: () =>
      readAllPages((cursor) =>
        unwrap(
          api.GET("/api/v1/projects/{project}/members", { params: { path: { project }, query: pageParams(cursor) } }),
        ),
      ),
  });

export const serviceAccountsQuery = (project: string) =>
  queryOptions({
    queryKey: [...keys.projects, project, "service-accounts"],
    queryFn: () =>
      readAllPages((cursor) =>
        unwrap(
          api.GET("/api/v1/projects/{project}/service-accounts", {
            params: { path: { project }, query: pageParams(cursor) },
          }),
        ),
      ),
  });

export const serviceAccountTokensQuery = (project: string, account: string) =>
  queryOptions({
    queryKey: [...keys.projects, project, "service-accounts", account, "tokens"],
    queryFn: () =>
      readAllPages((cursor) =>
        unwrap(
          api.GET("/api/v1/projects/{project}/service-accounts/{account}/tokens", {
            params: { path: { project, account }, query: pageParams(cursor) },
          }),
        ),
      ),
  });

export const secretsQuery = (project: string) =>
  queryOptions({
    queryKey: [...keys.projects, project, "secrets"],
    queryFn: () =>
      readAllPages((cursor) =>
        unwrap(
          api.GET("/api/v1/projects/{project}/secrets", { params: { path: { project }, query: pageParams(cursor) } }),
        ),
      ),
  });

export const usersQuery = queryOptions({
  queryKey: keys.users,
  queryFn: () => readAllPages((cursor) => unwrap(api.GET("/api/v1/users", { params: { query: pageParams(cursor) } }))),
});

export const tokensQuery = queryOptions({
  queryKey: keys.tokens,
  queryFn: () => readAllPages((cursor) => unwrap(api.GET("/api/v1/tokens", { params: { query: pageParams(cursor) } }))),
});

export const volumesQuery = queryOptions({
  queryKey: keys.volumes,
  queryFn: () =>
    readAllPages((cursor) => unwrap(api.GET("/api/v1/volumes", { params: { query: pageParams(cursor) } }))),
});

export function isOver(state: string): boolean {
  return ["succeeded", "failed", "cancelled", "expired"].includes(state);
}

function pageParams(cursor: string | null): { limit: number; cursor?: string } {
  return cursor === null ? { limit: 200 } : { limit: 200, cursor };
}

/** All pages of a list that people write by hand, so it is short. */
async function readAllPages<T>(read: (cursor: string | null) => Promise<Page<T>>): Promise<T[]> {
  return (await readPages(Number.POSITIVE_INFINITY, (cursor) => read(cursor ?? null))).items;
}

/** Jobs that hold resources on the nodes. */
export const holdersQuery = queryOptions({
  queryKey: [...keys.nodes, "holders"],
  queryFn: () =>
    readAllPages((cursor) => unwrap(api.GET("/api/v1/holders", { params: { query: pageParams(cursor) } }))),
  refetchInterval: LIVE_MS,
});

/** The newest waiting jobs. */
export const waitingQuery = queryOptions({
  queryKey: [...keys.jobs, "waiting"],
  queryFn: () => unwrap(api.GET("/api/v1/jobs", { params: { query: { state: ["queued"], limit: 10 } } })),
  refetchInterval: LIVE_MS,
});

/** Series of a job's metrics, each with its newest value; `system`: those measured by the platform. */
export const metricSeriesQuery = (job: string, system: boolean) =>
  queryOptions({
    queryKey: [...keys.jobMetrics(job), "series", system],
    queryFn: () => {
      const query = { kind: "scalar" as const, system, ...(system ? { prefix: "system/" } : {}) };
      return readAllPages((cursor) =>
        unwrap(
          api.GET("/api/v1/jobs/{job}/metrics", {
            params: { path: { job }, query: { ...query, ...pageParams(cursor) } },
          }),
        ),
      );
    },
    staleTime: 5_000,
  });

const FEW_SERIES = 100;

/** The first of a job's series, for an overview. */
export const fewSeriesQuery = (job: string, isEnabled: boolean, isOver: boolean) =>
  queryOptions({
    queryKey: [...keys.jobMetrics(job), "few"],
    queryFn: () => {
      const query = { kind: "scalar" as const, system: false, limit: FEW_SERIES };
      return unwrap(api.GET("/api/v1/jobs/{job}/metrics", { params: { path: { job }, query } }));
    },
    enabled: isEnabled,
    refetchInterval: isOver ? false : 5_000,
  });

/** Metric names of every kind: for a gang of many replicas, far fewer than its series. */
const namesQuery = (job: string, system: boolean) =>
  queryOptions({
    queryKey: keys.metricNames(job, system),
    queryFn: () => {
      const query = { system, limit: 1000, ...(system ? { prefix: "system/" } : {}) };
      return readAllPages((cursor) =>
        unwrap(
          api.GET("/api/v1/jobs/{job}/metrics/names", {
            params: { path: { job }, query: { ...query, ...cursorParam(cursor ?? "") } },
          }),
        ),
      );
    },
    staleTime: 5_000,
  });

/** Log lines that look like metrics, of a job that has ended without metrics. */
export const metricSuggestionsQuery = (job: string, isEnabled: boolean) =>
  queryOptions({
    queryKey: [...keys.jobMetrics(job), "suggestions"],
    queryFn: () => unwrap(api.GET("/api/v1/jobs/{job}/metrics/suggestions", { params: { path: { job } } })),
    enabled: isEnabled,
    select: (found) => found.suggestions ?? [],
  });

/** Names of scalar metrics. */
export const metricNamesQuery = (job: string, system: boolean) =>
  queryOptions({
    ...namesQuery(job, system),
    select: (found) => found.filter(({ kind }) => kind === "scalar").map(({ name }) => name),
  });

/** Where the code of two jobs differs; archives never change. */
export const codeDifferenceQuery = (job: string, other: string) =>
  queryOptions({
    queryKey: [...keys.job(job), "code", other],
    queryFn: () => unwrap(api.GET("/api/v1/jobs/{job}/code/diff", { params: { path: { job }, query: { other } } })),
    staleTime: Number.POSITIVE_INFINITY,
  });

export const resourcesQuery = (job: string) =>
  queryOptions({
    queryKey: [...keys.jobMetrics(job), "resources"],
    queryFn: () => unwrap(api.GET("/api/v1/jobs/{job}/resources", { params: { path: { job } } })),
    refetchInterval: 5_000,
  });

const nextCursor = (page: { next_cursor?: string | null }): string | undefined => page.next_cursor ?? undefined;
const cursorParam = (cursor: string): { cursor?: string } => (cursor ? { cursor } : {});

export const tensorsQuery = (job: string, path: string, search: string, kind: "" | "weight" | "optimizer") =>
  infiniteQueryOptions({
    queryKey: [...keys.checkpoint(job, path), "tensors", search, kind],
    queryFn: ({ pageParam }) => {
      const query = {
        path,
        limit: 200,
        ...cursorParam(pageParam),
        ...(search ? { search } : {}),
        ...(kind ? { kind } : {}),
      };
      return unwrap(api.GET("/api/v1/jobs/{job}/checkpoints/tensors", { params: { path: { job }, query } }));
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
      const query = { path, limit: 200, ...cursorParam(pageParam) };
      return unwrap(api.GET("/api/v1/jobs/{job}/checkpoints/statistics", { params: { path: { job }, query } }));
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
        ...cursorParam(pageParam),
      };
      return unwrap(api.GET("/api/v1/jobs/{job}/checkpoints/diff", { params: { path: { job }, query } }));
    },
    initialPageParam: "",
    getNextPageParam: nextCursor,
    staleTime: Number.POSITIVE_INFINITY,
  });

/** Metrics that are not scalars: histograms, images and texts, by name. */
export const objectSeriesQuery = (job: string) =>
  queryOptions({
    ...namesQuery(job, false),
    select: (found) => found.filter(({ kind }) => kind !== "scalar"),
  });

export const metricObjectsQuery = (job: string, name: string, kind: MetricObject["kind"]) =>
  queryOptions({
    queryKey: [...keys.jobMetrics(job), "objects", kind, name],
    queryFn: () =>
      readPages(MANY, (cursor) => {
        const query = { name, kind, limit: 200, ...cursorParam(cursor ?? "") };
        return unwrap(api.GET("/api/v1/jobs/{job}/metrics/objects", { params: { path: { job }, query } }));
      }),
    staleTime: 5_000,
  });
