import type { LogLine } from "~/api/types";

/* Limits of the log lines that a page holds. */

export const MAX_LINES = 50_000;
export const MAX_CHARACTERS = 24_000_000;

/** `key`: unique for each received line. */
export type ShownLine = LogLine & { key: number };

/** `before` and `fresh` up to a number of lines and characters; `dropped`: how many of the oldest were left out. */
export function newestLines(
  before: readonly ShownLine[],
  fresh: readonly ShownLine[],
  most = MAX_LINES,
  mostCharacters = MAX_CHARACTERS,
): { lines: ShownLine[]; dropped: number } {
  const all = [...before, ...fresh];
  let start = all.length;
  let characters = 0;
  while (start > 0 && all.length - start < most) {
    characters += all[start - 1]?.text.length ?? 0;
    if (characters > mostCharacters && start < all.length) break;
    start -= 1;
  }
  return { lines: start > 0 ? all.slice(start) : all, dropped: start };
}
