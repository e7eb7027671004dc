import { keepPreviousData, queryOptions } from "@tanstack/react-query";
import { readPages } from "./paging";
import { api, unwrap } from "./client";
import type { ModelVersion, Stage } from "./types";

/* Reads of registered models. A version whose files are still being copied is polled often. */

const LIVE_MS = 2_000;
const CALM_MS = 10_000;
const MANY = 1_000;

export const STAGES: readonly Stage[] = ["none", "staging", "production", "archived"];

export const modelKeys = {
  all: ["models"] as const,
  detail: (project: string, model: string) => ["model", project, model] as const,
};

export interface ModelFilters {
  q?: string;
  stage?: string;
  project?: string;
}

export const readModels = (filters: ModelFilters, cursor: string | null, limit: number, signal?: AbortSignal) => {
  const list = (text: string | undefined) => (text ?? "").split(",").filter(Boolean);
  const query = {
    limit,
    ...(cursor ? { cursor } : {}),
    ...(filters.q ? { search: filters.q } : {}),
    stage: list(filters.stage) as Stage[],
    project: list(filters.project),
  };
  return unwrap(api.GET("/api/v1/models", { params: { query }, ...(signal ? { signal } : {}) }));
};

/** The models that have a version of a job. */
export const modelsOfJobQuery = (job: string) =>
  queryOptions({
    queryKey: [...modelKeys.all, "job", job],
    queryFn: () => unwrap(api.GET("/api/v1/models", { params: { query: { job, limit: 20 } } })),
    refetchInterval: CALM_MS,
  });

/** Names to offer in a form. */
export const modelNamesQuery = (project: string) =>
  queryOptions({
    queryKey: [...modelKeys.all, "names", project],
    queryFn: () => unwrap(api.GET("/api/v1/models", { params: { query: { project: [project], limit: 200 } } })),
    enabled: project !== "",
    staleTime: 5_000,
  });

export const modelQuery = (project: string, model: string) =>
  queryOptions({
    queryKey: [...modelKeys.detail(project, model), "itself"],
    queryFn: () =>
      unwrap(api.GET("/api/v1/projects/{project}/models/{model}", { params: { path: { project, model } } })),
    refetchInterval: 5_000,
  });

const isInProgress = (version: ModelVersion | undefined): boolean =>
  version !== undefined && ["waiting", "registering"].includes(version.state);

/** All versions, newest first. */
export const versionsQuery = (project: string, model: string) =>
  queryOptions({
    queryKey: [...modelKeys.detail(project, model), "versions"],
    queryFn: () =>
      readPages(MANY, (cursor) => {
        const query = { limit: 200, ...(cursor ? { cursor } : {}) };
        return unwrap(
          api.GET("/api/v1/projects/{project}/models/{model}/versions", {
            params: { path: { project, model }, query },
          }),
        );
      }),
    refetchInterval: (query) => (query.state.data?.items.some(isInProgress) ? LIVE_MS : CALM_MS),
  });

export const versionQuery = (project: string, model: string, version: string) =>
  queryOptions({
    queryKey: [...modelKeys.detail(project, model), "version", version],
    queryFn: () =>
      unwrap(
        api.GET("/api/v1/projects/{project}/models/{model}/versions/{version}", {
          params: { path: { project, model, version } },
        }),
      ),
    refetchInterval: (query) => (isInProgress(query.state.data) ? LIVE_MS : CALM_MS),
  });

/** A version's files; they never change. */
export const versionFilesQuery = (project: string, model: string, version: number, isReady: boolean) =>
  queryOptions({
    queryKey: [...modelKeys.detail(project, model), "files", version],
    queryFn: () =>
      readPages(MANY, (cursor) => {
        const query = { limit: 1000, ...(cursor ? { cursor } : {}) };
        const path = { project, model, version: String(version) };
        return unwrap(
          api.GET("/api/v1/projects/{project}/models/{model}/versions/{version}/files", { params: { path, query } }),
        );
      }),
    enabled: isReady,
    staleTime: Number.POSITIVE_INFINITY,
  });

export const modelHistoryQuery = (project: string, model: string) =>
  queryOptions({
    queryKey: [...modelKeys.detail(project, model), "history"],
    queryFn: () =>
      readPages(MANY, (cursor) => {
        const query = { limit: 200, ...(cursor ? { cursor } : {}) };
        return unwrap(
          api.GET("/api/v1/projects/{project}/models/{model}/history", { params: { path: { project, model }, query } }),
        );
      }),
    placeholderData: keepPreviousData,
    refetchInterval: CALM_MS,
  });

const base = (project: string, model: string, version: number): string =>
  `/api/v1/projects/${encodeURIComponent(project)}/models/${encodeURIComponent(model)}/versions/${version}`;

export const archiveHref = (project: string, model: string, version: number): string =>
  `${base(project, model, version)}/archive`;

export const versionFileHref = (project: string, model: string, version: number, path: string): string =>
  `${base(project, model, version)}/files/content?path=${encodeURIComponent(path)}`;
