import { keepPreviousData, queryOptions, type QueryClient } from "@tanstack/react-query";
import { laidOverColumns, type Trials, NO_TRIALS } from "~/pages/study/trialRows";
import { api, got } from "./client";
import type { StudyDetail, StudyState } from "./types";

/* Every read about studies. A study that has ended is asked for calmly. */

const LIVE_MS = 2_000;
const CALM_MS = 10_000;

export const studyKeys = {
  all: ["studies"] as const,
  one: (id: string) => ["study", id] as const,
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
  return got(api.GET("/api/v1/studies", { params: { query }, ...(signal ? { signal } : {}) }));
};

export const studyQuery = (id: string) =>
  queryOptions({
    queryKey: studyKeys.one(id),
    queryFn: () => got(api.GET("/api/v1/studies/{study}", { params: { path: { study: id } } })) as Promise<StudyDetail>,
    refetchInterval: (query) => (isStudyOver(query.state.data?.state) ? CALM_MS : LIVE_MS),
  });

export const studyBestQuery = (id: string, ended: number) =>
  queryOptions({
    queryKey: [...studyKeys.one(id), "best", ended],
    queryFn: () => got(api.GET("/api/v1/studies/{study}/best", { params: { path: { study: id } } })),
    placeholderData: keepPreviousData,
    staleTime: Number.POSITIVE_INFINITY,
  });

/** An AutoML study's leaderboard and its final test, which is told some time after the search is over. */
export const automlQuery = (id: string, ended: number, isOver: boolean) =>
  queryOptions({
    queryKey: [...studyKeys.one(id), "automl", ended],
    queryFn: () => got(api.GET("/api/v1/automl/{study}", { params: { path: { study: id }, query: { limit: 1000 } } })),
    placeholderData: keepPreviousData,
    refetchInterval: (query) =>
      !isOver ? CALM_MS : query.state.data?.test != null || query.state.data?.winner == null ? false : LIVE_MS,
  });

/** All trials in columns. Read whole once; then only what has changed since. */
export const trialsQuery = (id: string, isOver: boolean, client: QueryClient) => {
  const queryKey = [...studyKeys.one(id), "trials"];
  return queryOptions({
    queryKey,
    queryFn: async () => {
      const known = client.getQueryData<Trials>(queryKey) ?? NO_TRIALS;
      const query = known.until ? { since: known.until } : {};
      const told = await got(api.GET("/api/v1/studies/{study}/columns", { params: { path: { study: id }, query } }));
      return laidOverColumns(known, told);
    },
    structuralSharing: false,
    refetchInterval: isOver ? CALM_MS : LIVE_MS,
    staleTime: 1_000,
  });
};

/** States of the trials' jobs that have not begun, or not gone on: to the study such a trial runs. */
export const waitingJobsQuery = (study: StudyDetail | undefined, isWanted: boolean) =>
  queryOptions({
    queryKey: [...studyKeys.one(study?.id ?? ""), "waiting"],
    queryFn: async () => {
      const query = {
        study: [study?.id ?? ""],
        state: ["queued" as const, "starting" as const, "paused" as const],
        limit: 200,
      };
      const { items } = await got(api.GET("/api/v1/jobs", { params: { query } }));
      return items.map((job) => [job.id, job.state] as const);
    },
    enabled: study !== undefined && isWanted,
    refetchInterval: LIVE_MS,
  });

export const importanceQuery = (id: string, metric: string | undefined, results: number) =>
  queryOptions({
    queryKey: [...studyKeys.one(id), "importance", metric ?? "", results],
    queryFn: () =>
      got(
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
    queryKey: [...studyKeys.one(id), "prediction", more ?? 0, results],
    queryFn: () =>
      got(
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
    queryKey: [...studyKeys.one(id), "curves"],
    queryFn: () =>
      got(api.GET("/api/v1/studies/{study}/curves", { params: { path: { study: id }, query: { limit: 60 } } })),
    refetchInterval: isOver ? false : 5_000,
  });
