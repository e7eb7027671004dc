import { keepPreviousData, queryOptions, type QueryClient } from "@tanstack/react-query";
import { mergeColumns, type Trials, NO_TRIALS } from "./trialRows";
import { api, unwrap } from "./client";
import type { StudyDetail, StudyState } from "./types";

/* Reads of studies. A study that has ended is polled slowly. */

const LIVE_MS = 2_000;
const CALM_MS = 10_000;

export const studyKeys = {
  all: ["studies"] as const,
  detail: (id: string) => ["study", id] as const,
};

export const isStudyOver = (state: string | undefined): boolean =>
  state !== undefined && ["succeeded", "failed", "cancelled"].includes(state);

export interface StudyFilters {
  q?: string;
  state?: string;
  project?: string;
  user?: string;
}

export const readStudies = (filters: StudyFilters, cursor: string | null, limit: number, signal?: AbortSignal) => {
  const list = (text: string | undefined) => (text ?? "").split(",").filter(Boolean);
  const query = {
    limit,
    ...(cursor ? { cursor } : {}),
    ...(filters.q ? { search: filters.q } : {}),
    state: list(filters.state) as StudyState[],
    project: list(filters.project),
    user: list(filters.user),
  };
  return unwrap(api.GET("/api/v1/studies", { params: { query }, ...(signal ? { signal } : {}) }));
};

export const studyQuery = (id: string) =>
  queryOptions({
    queryKey: studyKeys.detail(id),
    queryFn: () =>
      unwrap(api.GET("/api/v1/studies/{study}", { params: { path: { study: id } } })) as Promise<StudyDetail>,
    refetchInterval: (query) => (isStudyOver(query.state.data?.state) ? CALM_MS : LIVE_MS),
  });

export const studyBestQuery = (id: string, ended: number) =>
  queryOptions({
    queryKey: [...studyKeys.detail(id), "best", ended],
    queryFn: () => unwrap(api.GET("/api/v1/studies/{study}/best", { params: { path: { study: id } } })),
    placeholderData: keepPreviousData,
    staleTime: Number.POSITIVE_INFINITY,
  });

/** An AutoML study's leaderboard and its final test, which follows some time after the search. */
export const automlQuery = (id: string, ended: number, isOver: boolean) =>
  queryOptions({
    queryKey: [...studyKeys.detail(id), "automl", ended],
    queryFn: () =>
      unwrap(api.GET("/api/v1/automl/{study}", { params: { path: { study: id }, query: { limit: 1000 } } })),
    placeholderData: keepPreviousData,
    refetchInterval: (query) =>
      !isOver ? CALM_MS : query.state.data?.test != null || query.state.data?.winner == null ? false : LIVE_MS,
  });

/** All trials in columns: read whole once, then only the changes. */
export const trialsQuery = (id: string, isOver: boolean, client: QueryClient) => {
  const queryKey = [...studyKeys.detail(id), "trials"];
  return queryOptions({
    queryKey,
    queryFn: async () => {
      const known = client.getQueryData<Trials>(queryKey) ?? NO_TRIALS;
      const query = known.until ? { since: known.until } : {};
      const columns = await unwrap(
        api.GET("/api/v1/studies/{study}/columns", { params: { path: { study: id }, query } }),
      );
      return mergeColumns(known, columns);
    },
    structuralSharing: false,
    refetchInterval: isOver ? CALM_MS : LIVE_MS,
    staleTime: 1_000,
  });
};

/** States of trials' jobs that are queued, starting or paused: the study itself reports such a trial as running. */
export const waitingJobsQuery = (study: StudyDetail | undefined, isEnabled: boolean) =>
  queryOptions({
    queryKey: [...studyKeys.detail(study?.id ?? ""), "waiting"],
    queryFn: async () => {
      const query = {
        study: [study?.id ?? ""],
        state: ["queued" as const, "starting" as const, "paused" as const],
        limit: 200,
      };
      const { items } = await unwrap(api.GET("/api/v1/jobs", { params: { query } }));
      return items.map((job) => [job.id, job.state] as const);
    },
    enabled: study !== undefined && isEnabled,
    refetchInterval: LIVE_MS,
  });

export const importanceQuery = (id: string, metric: string | undefined, results: number) =>
  queryOptions({
    queryKey: [...studyKeys.detail(id), "importance", metric ?? "", results],
    queryFn: () =>
      unwrap(
        api.GET("/api/v1/studies/{study}/importance", {
          params: { path: { study: id }, query: metric === undefined ? {} : { metric } },
        }),
      ),
    placeholderData: keepPreviousData,
    staleTime: Number.POSITIVE_INFINITY,
    retry: 1,
  });

export const predictionQuery = (id: string, more: number | undefined, results: number) =>
  queryOptions({
    queryKey: [...studyKeys.detail(id), "prediction", more ?? 0, results],
    queryFn: () =>
      unwrap(
        api.GET("/api/v1/studies/{study}/prediction", {
          params: { path: { study: id }, query: more === undefined ? {} : { more } },
        }),
      ),
    placeholderData: keepPreviousData,
    staleTime: Number.POSITIVE_INFINITY,
    retry: 1,
  });

export const curvesQuery = (id: string, isOver: boolean) =>
  queryOptions({
    queryKey: [...studyKeys.detail(id), "curves"],
    queryFn: () =>
      unwrap(api.GET("/api/v1/studies/{study}/curves", { params: { path: { study: id }, query: { limit: 60 } } })),
    refetchInterval: isOver ? false : 5_000,
  });
