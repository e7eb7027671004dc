import createClient from "openapi-fetch";
import { hasAnsweredSince, noteAnswer, noteUnreachable } from "./connection";
import type { components, paths } from "./schema.gen";

export type Problem = components["schemas"]["Problem"];

/** An error response: `message` is the API's own sentence, which says what to do. */
export class ApiError extends Error {
  readonly status: number;
  readonly code: string;
  readonly problem: Partial<Problem>;

  constructor(status: number, problem: Partial<Problem>) {
    super(problem.detail ?? `The API answered ${status}.`);
    this.status = status;
    this.code = problem.code ?? "unknown";
    this.problem = problem;
  }
}

/** No response at all, or none from the API: it is unreachable, and may come back. */
export class Unreachable extends Error {
  constructor() {
    super("The API does not respond. Running jobs continue; this page retries automatically.");
  }
}

export function isTransient(error: unknown): boolean {
  return error instanceof Unreachable || (error instanceof ApiError && [429, 502, 503, 504].includes(error.status));
}

let whenLoggedOut: () => void = () => undefined;

/** What to do when the session is no longer valid. */
export function onLoggedOut(act: () => void): void {
  whenLoggedOut = act;
}

const PROBE_AFTER_MS = 4_000;

/**
 * A slow request and a connection to a dead process look alike: if there was no response at all since the request was
 * sent, probe the cheapest route.
 */
async function probeApi(sentMs: number): Promise<void> {
  if (hasAnsweredSince(sentMs)) return;
  try {
    await fetch("/api/v1/health/live", { signal: AbortSignal.timeout(PROBE_AFTER_MS) });
    noteAnswer();
  } catch {
    if (!hasAnsweredSince(sentMs)) noteUnreachable();
  }
}

export const send: typeof fetch = async (input, init) => {
  const sentMs = Date.now();
  const timer = setTimeout(() => void probeApi(sentMs), PROBE_AFTER_MS);
  let response: Response;
  try {
    response = await fetch(input, init);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    noteUnreachable();
    throw new Unreachable();
  } finally {
    clearTimeout(timer);
  }
  if ([502, 503, 504].includes(response.status)) noteUnreachable();
  else noteAnswer();
  const isLogin = /^\/api\/v1\/(session$|login\/)/.test(new URL(response.url).pathname);
  if (response.status === 401 && !isLogin) whenLoggedOut();
  return response;
};

export const api = createClient<paths>({ baseUrl: window.location.origin, fetch: (request) => send(request) });

interface Answer<T> {
  data?: T;
  error?: unknown;
  response: Response;
}

/** The data of a response; throws {@link ApiError} or {@link Unreachable}. */
export async function unwrap<T>(answer: Promise<Answer<T>>): Promise<T> {
  const { data, error, response } = await answer;
  if (response.ok) return data as T;
  const problem = typeof error === "object" && error !== null ? (error as Partial<Problem>) : {};
  throw new ApiError(response.status, problem);
}
