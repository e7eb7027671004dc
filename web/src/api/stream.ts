import { send } from "./client";
import { noteAnswer, noteSilence } from "./connection";

/* Server-sent events that go on after a break where they were. The browser does most of it: it connects again with the last
 * id that it saw. What it does not do is to try again after an answer that is an error, such as a proxy's 502. */

const AGAIN_MS = 3_000;

interface Listener {
  /** One event's data, by the event's name. */
  [kind: string]: unknown;
  failed: (error: Error) => void;
  /** A connection stands: the first, or one after a break, which may tell again what was told. */
  opened?: () => void;
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
  /** The browser keeps to itself what an answer said that was no stream: ask once more, and read it. */
  const probe = async () => {
    const asked = new AbortController();
    try {
      const response = await send(path, { signal: asked.signal });
      if (isStopped) return;
      if (response.status >= 400 && response.status < 500 && ![401, 408, 429].includes(response.status)) {
        const problem = (await response.json()) as { detail?: string };
        stop();
        listener.failed(new Error(problem.detail ?? `The API answered ${response.status}.`));
        return;
      }
    } catch {
      // No answer at all: it may come back.
    } finally {
      asked.abort();
    }
    if (!isStopped) timer = setTimeout(connect, AGAIN_MS);
  };
  const connect = () => {
    // A new EventSource does not know the id of the one before; only a header of ours could tell, which it cannot send.
    // So a stream that is begun anew tells all again, and listeners drop what they have by its id or place.
    source = new EventSource(path);
    source.onopen = () => {
      noteAnswer();
      listener.opened?.();
    };
    source.onerror = () => {
      if (source?.readyState !== EventSource.CLOSED || isStopped) {
        noteSilence();
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
