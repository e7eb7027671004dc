import { useSyncExternalStore } from "react";

/* Whether the API is reachable, by the last request. */

let isAway = false;
let answeredMs = 0; // time of the last response
const listeners = new Set<() => void>();

function setAway(away: boolean): void {
  if (away === isAway) return;
  isAway = away;
  for (const listener of listeners) listener();
}

export const noteUnreachable = (): void => setAway(true);
export const noteAnswer = (): void => {
  answeredMs = Date.now();
  setAway(false);
};
export const hasAnsweredSince = (ms: number): boolean => answeredMs >= ms;

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function useIsAway(): boolean {
  return useSyncExternalStore(subscribe, () => isAway);
}
