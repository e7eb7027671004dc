import { describe, expect, it } from "vitest";
import { changesOf, hunksOf } from "./textDiff";

describe("text diff", () => {
  it("numbers the lines of both texts and marks added and removed ones", () => {
    const hunks = hunksOf("a\nb\nc\n", "a\nB\nc\n") ?? [];
    expect(hunks[0]?.lines.map((line) => [line.kind, line.before, line.after, line.text])).toEqual([
      ["same", 1, 1, "a"],
      ["removed", 2, null, "b"],
      ["added", null, 2, "B"],
      ["same", 3, 3, "c"],
    ]);
    expect(changesOf(hunks)).toEqual({ added: 1, removed: 1 });
  });
});
