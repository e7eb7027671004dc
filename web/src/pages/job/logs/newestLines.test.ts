import { describe, expect, it } from "vitest";
import { newestLines, type ShownLine } from "./newestLines";
import { compileFinder } from "./highlight";

const line = (key: number, text = "x"): ShownLine => ({
  key,
  text,
  attempt: 1,
  role: "worker",
  index: 0,
  offset: key,
  at: null,
  rank: null,
  local_rank: null,
});
const keys = (lines: readonly ShownLine[]) => lines.map((one) => one.key);

describe("the newest lines", () => {
  it("are kept up to a count and up to a size", () => {
    const all = [0, 1, 2, 3, 4].map((key) => line(key, "abc"));
    expect(newestLines(all.slice(0, 2), all.slice(2)).dropped).toBe(0);
    const few = newestLines(all.slice(0, 2), all.slice(2), 3);
    expect([keys(few.lines), few.dropped]).toEqual([[2, 3, 4], 2]);
    const small = newestLines(all.slice(0, 2), all.slice(2), 5, 7);
    expect([keys(small.lines), small.dropped]).toEqual([[3, 4], 3]);
  });
  it("hold one that is larger than all may be", () => {
    expect(keys(newestLines([line(0)], [line(1, "y".repeat(50))], 5, 7).lines)).toEqual([1]);
  });
});

describe("marks of a search", () => {
  it("stand where RE2 finds something", () => {
    expect(compileFinder("b+")?.("abbcb")).toEqual([
      [1, 3],
      [4, 5],
    ]);
    expect(compileFinder("(?i)LOSS=\\pN")?.("x loss=3")).toEqual([[2, 8]]);
    expect(compileFinder("x*")?.("aab")).toEqual([]);
    expect(compileFinder("(")).toBeNull();
  });
  it("are found at once in a line that would keep a browser's own expression busy for ever", () => {
    expect(compileFinder("(x+x+)+y|^x")?.("x".repeat(4000))).toEqual([[0, 1]]);
  });
});
