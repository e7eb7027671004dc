import { describe, expect, it } from "vitest";
import type { ShownLine } from "./newestLines";
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

describe("search highlighting", () => {
  it("marks RE2's matches", () => {
    expect(compileFinder("b+")?.("abbcb")).toEqual([
      [1, 3],
      [4, 5],
    ]);
    expect(compileFinder("(?i)LOSS=\\pN")?.("x loss=3")).toEqual([[2, 8]]);
    expect(compileFinder("x*")?.("aab")).toEqual([]);
    expect(compileFinder("(")).toBeNull();
  });
  it("is linear where the browser's own engine backtracks", () => {
    expect(compileFinder("(x+x+)+y|^x")?.("x".repeat(4000))).toEqual([[0, 1]]);
  });
});
