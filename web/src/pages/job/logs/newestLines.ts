import type { LogLine } from "~/api/types";

/* How much of a log a page holds. */

export const MAX_LINES = 50_000;
export const MAX_CHARACTERS = 24_000_000;

/** `key`: another one for each line that was received. */
export type ShownLine = LogLine & { key: number };

/** `before` and `fresh` without the oldest beyond so many lines and characters; `over`: how many those are. */
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
