import { api, got } from "./client";
import { noteAnswer, noteSilence } from "./connection";

/* Server-sent events that go on after a break where they were. The browser does most of it: it connects again with the last
 * id that it saw. What it does not do is to try again after an answer that is an error, such as a proxy's 502. */

const AGAIN_MS = 3_000;

interface Listener {
  /** One event's data, by the event's name. */
  [kind: string]: unknown;
  failed: (error: Error) => void;
}

/** Follows `path`; returns how to stop. `end` and a refusal (`error`) stop it, too. */
export function follow(path: string, listener: Listener): () => void {
  let source: EventSource | null = null;
  let timer: ReturnType<typeof setTimeout> | undefined;
  let isStopped = false;

  const stop = () => {
    isStopped = true;
    source?.close();
    clearTimeout(timer);
  };
  const connect = () => {
    // A new EventSource does not know the id of the one before; only a header of ours could tell, which it cannot send.
    // So a stream that is begun anew tells all again, and listeners drop what they have by its id or place.
    source = new EventSource(path);
    source.onopen = noteAnswer;
    source.onerror = () => {
      if (source?.readyState !== EventSource.CLOSED || isStopped) {
        noteSilence();
        return;
      }
      // An answer that was no stream. Whether the session is over, or the API away, any other request tells.
      got(api.GET("/api/v1/me")).catch(() => undefined);
      timer = setTimeout(connect, AGAIN_MS);
    };
    for (const [kind, act] of Object.entries(listener)) {
      if (kind === "failed" || kind === "error" || typeof act !== "function") continue;
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
