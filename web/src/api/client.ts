import createClient from "openapi-fetch";
import { hasAnsweredSince, noteAnswer, noteSilence } from "./connection";
import type { components, paths } from "./schema.gen";

export type Problem = components["schemas"]["Problem"];

/** An answer that says no: `message` is the API's own sentence, which says what to do. */
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

/** No answer at all, or none of the API's: it is away, and may come back. */
export class Unreachable extends Error {
  constructor() {
    super("The API does not answer. Running jobs go on; this page tries again by itself.");
  }
}

export function isPassing(error: unknown): boolean {
  return error instanceof Unreachable || (error instanceof ApiError && [429, 502, 503, 504].includes(error.status));
}

let whenLoggedOut: () => void = () => undefined;

/** What to do when a session is no good any more. */
export function onLoggedOut(act: () => void): void {
  whenLoggedOut = act;
}

const PATIENCE_MS = 4_000;

/**
 * A request may take long, and a connection to a process that is gone may wait for the next one: where nothing at all has
 * answered since it was sent, ask for the cheapest thing that there is.
 */
async function lookAgain(sentMs: number): Promise<void> {
  if (hasAnsweredSince(sentMs)) return;
  try {
    await fetch("/api/v1/health/live", { signal: AbortSignal.timeout(PATIENCE_MS) });
    noteAnswer();
  } catch {
    if (!hasAnsweredSince(sentMs)) noteSilence();
  }
}

export const send: typeof fetch = async (input, init) => {
  const sentMs = Date.now();
  const timer = setTimeout(() => void lookAgain(sentMs), PATIENCE_MS);
  let response: Response;
  try {
    response = await fetch(input, init);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    noteSilence();
    throw new Unreachable();
  } finally {
    clearTimeout(timer);
  }
  if ([502, 503, 504].includes(response.status)) noteSilence();
  else noteAnswer();
  const isLogin = new URL(response.url).pathname.endsWith("/api/v1/session");
  if (response.status === 401 && !isLogin) whenLoggedOut();
  return response;
};

export const api = createClient<paths>({ baseUrl: window.location.origin, fetch: (request) => send(request) });

interface Answer<T> {
  data?: T;
  error?: unknown;
  response: Response;
}

/** The data of an answer; throws {@link ApiError} or {@link Unreachable}. */
export async function got<T>(answer: Promise<Answer<T>>): Promise<T> {
  const { data, error, response } = await answer;
  if (response.ok) return data as T;
  const problem = typeof error === "object" && error !== null ? (error as Partial<Problem>) : {};
  throw new ApiError(response.status, problem);
}
