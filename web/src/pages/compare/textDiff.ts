import { structuredPatch } from "diff";

/* Line diff of two texts. Both come from users, so the time of a comparison is bounded. */

export interface DiffLine {
  kind: "same" | "added" | "removed";
  /** Counted from 1; null where the line is not in that text. */
  before: number | null;
  after: number | null;
  text: string;
}

export interface Hunk {
  key: string;
  lines: DiffLine[];
}

const WITHIN_MS = 500;
const AROUND = 3; // context lines above and below

/** The differences with a few context lines; null: the comparison took too long. */
export function hunksOf(before: string, after: string): Hunk[] | null {
  const patch = structuredPatch("", "", before, after, "", "", { context: AROUND, timeout: WITHIN_MS });
  if (patch === undefined) return null;
  return patch.hunks.map((hunk) => {
    let [old, now] = [hunk.oldStart, hunk.newStart];
    const lines = hunk.lines
      .filter((line) => !line.startsWith("\\"))
      .map((line): DiffLine => {
        const text = line.slice(1);
        if (line.startsWith("-")) return { kind: "removed", before: old++, after: null, text };
        if (line.startsWith("+")) return { kind: "added", before: null, after: now++, text };
        return { kind: "same", before: old++, after: now++, text };
      });
    return { key: `${hunk.oldStart},${hunk.newStart}`, lines };
  });
}

export function changesOf(hunks: readonly Hunk[]): { added: number; removed: number } {
  const lines = hunks.flatMap((hunk) => hunk.lines);
  return {
    added: lines.filter((line) => line.kind === "added").length,
    removed: lines.filter((line) => line.kind === "removed").length,
  };
}
