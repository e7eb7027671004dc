import { describe, expect, it } from "vitest";
import { compileFinder } from "./highlight";

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
