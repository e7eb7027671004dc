import { queryOptions } from "@tanstack/react-query";
import { api, ApiError, unwrap, type Problem, Unreachable } from "./client";
import type { EndpointDetail } from "./types";

/* Reads of endpoints, and prediction requests. */

const LIVE_MS = 2_000;
const CALM_MS = 5_000;

export const endpointKeys = {
  all: ["endpoints"] as const,
  detail: (project: string, endpoint: string) => ["endpoint", project, endpoint] as const,
  batches: ["batches"] as const,
};

export interface EndpointFilters {
  project?: string;
}

export const readEndpoints = (
  { project }: EndpointFilters,
  cursor: string | null,
  limit: number,
  signal?: AbortSignal,
) => {
  const query = { limit, ...(cursor ? { cursor } : {}), ...(project ? { project } : {}) };
  return unwrap(api.GET("/api/v1/endpoints", { params: { query }, ...(signal ? { signal } : {}) }));
};

/** Names to offer in a form. */
export const endpointNamesQuery = (project: string) =>
  queryOptions({
    queryKey: [...endpointKeys.all, "names", project],
    queryFn: () => readEndpoints({ project }, null, 200),
    enabled: project !== "",
    staleTime: 5_000,
  });

export const endpointQuery = (project: string, endpoint: string) =>
  queryOptions({
    queryKey: endpointKeys.detail(project, endpoint),
    queryFn: () =>
      unwrap(
        api.GET("/api/v1/projects/{project}/endpoints/{endpoint}", { params: { path: { project, endpoint } } }),
      ) as Promise<EndpointDetail>,
    refetchInterval: (query) =>
      (query.state.data?.deployments ?? []).every((deployment) => deployment.state === "ready") ? CALM_MS : LIVE_MS,
  });

export const predictHref = (project: string, endpoint: string, deployment?: string): string => {
  const at = `/api/v1/projects/${encodeURIComponent(project)}/endpoints/${encodeURIComponent(endpoint)}:predict`;
  return deployment ? `${at}?deployment=${encodeURIComponent(deployment)}` : at;
};

export interface PredictionAnswer {
  status: number;
  /** Indented where it is JSON. */
  text: string;
  /** From sending to the last byte, measured in this browser. */
  durationMs: number;
  deployment: string;
  revision: string;
  replica: string;
}

const MOST_SHOWN = 200_000; // characters

/**
 * The model's response to a body, including the model's own errors.
 *
 * @throws ApiError the platform's error instead of the model's response: no ready replica, timeout, too large.
 */
export async function predict(
  project: string,
  endpoint: string,
  deployment: string,
  body: string,
  signal: AbortSignal,
): Promise<PredictionAnswer> {
  const beganMs = performance.now();
  const headers = { "Content-Type": "application/json" };
  // Not through the API client: 503 and 504 are about the model here, they do not mean that the API is unreachable.
  const answer = await fetch(predictHref(project, endpoint, deployment), {
    method: "POST",
    body,
    headers,
    signal,
  }).catch((error: unknown) => {
    throw signal.aborted ? error : new Unreachable();
  });
  const text = await answer.text();
  const durationMs = performance.now() - beganMs;
  if (answer.headers.get("Trainmaster-Answered-By") !== "model") throw new ApiError(answer.status, problemOf(text));
  const header = (name: string) => answer.headers.get(`Trainmaster-${name}`) ?? "";
  return {
    status: answer.status,
    text: prettyJson(text),
    durationMs,
    deployment: header("Deployment"),
    revision: header("Revision"),
    replica: header("Replica"),
  };
}

function problemOf(text: string): Partial<Problem> {
  try {
    return JSON.parse(text) as Partial<Problem>;
  } catch {
    return {};
  }
}

function prettyJson(text: string): string {
  let shown = text;
  try {
    shown = JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    // Not JSON: shown unchanged.
  }
  return shown.length > MOST_SHOWN
    ? `${shown.slice(0, MOST_SHOWN)}\n… and ${shown.length - MOST_SHOWN} more characters`
    : shown;
}
