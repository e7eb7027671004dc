import { useSyncExternalStore } from "react";

/* Whether the API answers, as the last request saw it. */

let isAway = false;
let answeredMs = 0; // when something answered last
const listeners = new Set<() => void>();

function tell(away: boolean): void {
  if (away === isAway) return;
  isAway = away;
  for (const listener of listeners) listener();
}

export const noteSilence = (): void => tell(true);
export const noteAnswer = (): void => {
  answeredMs = Date.now();
  tell(false);
};
export const hasAnsweredSince = (ms: number): boolean => answeredMs >= ms;

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function useIsAway(): boolean {
  return useSyncExternalStore(subscribe, () => isAway);
}
