import { useSyncExternalStore } from "react";

/* One clock for all relative times: a page with a thousand of them has one timer. */

let nowMs = Date.now();
let timer: ReturnType<typeof setInterval> | undefined;
const listeners = new Set<() => void>();

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  timer ??= setInterval(() => {
    nowMs = Date.now();
    for (const each of listeners) each();
  }, 1000);
  return () => {
    listeners.delete(listener);
    if (listeners.size === 0) {
      clearInterval(timer);
      timer = undefined;
    }
  };
}

/** Milliseconds since 1970, at most one second old. */
export function useNow(): number {
  return useSyncExternalStore(subscribe, () => nowMs);
}
