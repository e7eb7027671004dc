import { queryOptions } from "@tanstack/react-query";
import { api, ApiError, got, type Problem, Unreachable } from "./client";
import type { EndpointDetail } from "./types";

/* Every read about endpoints, and asking one. */

const LIVE_MS = 2_000;
const CALM_MS = 5_000;

export const endpointKeys = {
  all: ["endpoints"] as const,
  one: (project: string, endpoint: string) => ["endpoint", project, endpoint] as const,
  batches: ["batches"] as const,
};

export const readEndpoints = (
  project: string | undefined,
  cursor: string | null,
  limit: number,
  signal?: AbortSignal,
) => {
  const query = { limit, ...(cursor ? { cursor } : {}), ...(project ? { project } : {}) };
  return got(api.GET("/api/v1/endpoints", { params: { query }, ...(signal ? { signal } : {}) }));
};

/** Names to choose from. */
export const endpointNamesQuery = (project: string) =>
  queryOptions({
    queryKey: [...endpointKeys.all, "names", project],
    queryFn: () => readEndpoints(project, null, 200),
    enabled: project !== "",
    staleTime: 5_000,
  });

export const endpointQuery = (project: string, endpoint: string) =>
  queryOptions({
    queryKey: endpointKeys.one(project, endpoint),
    queryFn: () =>
      got(
        api.GET("/api/v1/projects/{project}/endpoints/{endpoint}", { params: { path: { project, endpoint } } }),
      ) as Promise<EndpointDetail>,
    refetchInterval: (query) =>
      (query.state.data?.deployments ?? []).every((one) => one.state === "ready") ? CALM_MS : LIVE_MS,
  });

export const predictHref = (project: string, endpoint: string, deployment?: string): string => {
  const at = `/api/v1/projects/${encodeURIComponent(project)}/endpoints/${encodeURIComponent(endpoint)}:predict`;
  return deployment ? `${at}?deployment=${encodeURIComponent(deployment)}` : at;
};

export interface Told {
  status: number;
  /** As it came; laid out where it is JSON. */
  text: string;
  /** From sending to the last byte, in this browser. */
  tookMs: number;
  deployment: string;
  revision: string;
  replica: string;
}

const MOST_SHOWN = 200_000; // characters

/**
 * What the model says to a body, errors of its own included.
 *
 * @throws ApiError what the platform says instead of the model: nothing is ready, too slow, too large.
 */
export async function ask(
  project: string,
  endpoint: string,
  deployment: string,
  body: string,
  signal: AbortSignal,
): Promise<Told> {
  const beganMs = performance.now();
  const headers = { "Content-Type": "application/json" };
  // Not by the client: 503 and 504 are what is said of the model here, not that the API is away.
  const answer = await fetch(predictHref(project, endpoint, deployment), {
    method: "POST",
    body,
    headers,
    signal,
  }).catch((error: unknown) => {
    throw signal.aborted ? error : new Unreachable();
  });
  const text = await answer.text();
  const tookMs = performance.now() - beganMs;
  if (answer.headers.get("Trainmaster-Answered-By") !== "model") throw new ApiError(answer.status, problemOf(text));
  const header = (name: string) => answer.headers.get(`Trainmaster-${name}`) ?? "";
  return {
    status: answer.status,
    text: laidOut(text),
    tookMs,
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

function laidOut(text: string): string {
  let shown = text;
  try {
    shown = JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    // Not JSON: as it came.
  }
  return shown.length > MOST_SHOWN
    ? `${shown.slice(0, MOST_SHOWN)}\n… and ${shown.length - MOST_SHOWN} characters more`
    : shown;
}
