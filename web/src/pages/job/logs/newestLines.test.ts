import { describe, expect, it } from "vitest";
import { newestLines, type ShownLine } from "./newestLines";

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
  it("are limited by count and size", () => {
    const all = [0, 1, 2, 3, 4].map((key) => line(key, "abc"));
    expect(newestLines(all.slice(0, 2), all.slice(2)).dropped).toBe(0);
    const few = newestLines(all.slice(0, 2), all.slice(2), 3);
    expect([keys(few.lines), few.dropped]).toEqual([[2, 3, 4], 2]);
    const small = newestLines(all.slice(0, 2), all.slice(2), 5, 7);
    expect([keys(small.lines), small.dropped]).toEqual([[3, 4], 3]);
  });
  it("contain at least one line of any size", () => {
    expect(keys(newestLines([line(0)], [line(1, "y".repeat(50))], 5, 7).lines)).toEqual([1]);
  });
});
