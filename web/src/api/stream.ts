import { send } from "./client";
import { noteAnswer, noteUnreachable } from "./connection";

/* Server-sent events that resume after a break. The browser does most of it: it reconnects with the last
 * event id. It does not retry after an error response, such as a proxy's 502. */

const RETRY_MS = 3_000;

interface Listener {
  /** One event's data, by the event's name. */
  [kind: string]: unknown;
  failed: (error: Error) => void;
  /** Connected: for the first time or after a break, when events may be repeated. */
  opened?: () => void;
}

/** Follows `path`; returns a function that stops it. `end` and a refusal (`error`) stop it, too. */
export function follow(path: string, listener: Listener): () => void {
  let source: EventSource | null = null;
  let timer: ReturnType<typeof setTimeout> | undefined;
  let isStopped = false;

  const stop = () => {
    isStopped = true;
    source?.close();
    clearTimeout(timer);
  };
  /** The browser hides the body of an error response: request it once more, and read it. */
  const probe = async () => {
    const abort = new AbortController();
    try {
      const response = await send(path, { signal: abort.signal });
      if (isStopped) return;
      if (response.status >= 400 && response.status < 500 && ![401, 408, 429].includes(response.status)) {
        const problem = (await response.json()) as { detail?: string };
        stop();
        listener.failed(new Error(problem.detail ?? `The API answered ${response.status}.`));
        return;
      }
    } catch {
      // No response at all: the API may come back.
    } finally {
      abort.abort();
    }
    if (!isStopped) timer = setTimeout(connect, RETRY_MS);
  };
  const connect = () => {
    // A new EventSource does not know the last event id, and it cannot send a header with it.
    // So a new stream repeats all events, and listeners drop duplicates by id or offset.
    source = new EventSource(path);
    source.onopen = () => {
      noteAnswer();
      listener.opened?.();
    };
    source.onerror = () => {
      if (source?.readyState !== EventSource.CLOSED || isStopped) {
        noteUnreachable();
        return;
      }
      void probe();
    };
    for (const [kind, act] of Object.entries(listener)) {
      if (["failed", "opened", "error"].includes(kind) || typeof act !== "function") continue;
      source.addEventListener(kind, (event) => {
        if (kind === "end") stop();
        act(JSON.parse(event.data));
      });
    }
    if (!("end" in listener)) source.addEventListener("end", stop);
    // The API's own refusal comes as an event of this name with data; the browser's has none.
    source.addEventListener("error", (event) => {
      if (!(event instanceof MessageEvent)) return;
      stop();
      const problem = JSON.parse(event.data) as { detail?: string };
      listener.failed(new Error(problem.detail ?? "The stream ended."));
    });
  };
  connect();
  return stop;
}
