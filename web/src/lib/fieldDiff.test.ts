import { describe, expect, it } from "vitest";
import { fieldDiff } from "./fieldDiff";
import { toggled } from "./filters";

describe("field diff", () => {
  it("marks fields that differ", () => {
    const rows = fieldDiff([
      { a: 1, b: { c: ["x", "y"] } },
      { a: 2, b: { c: ["x", "y"] }, d: null },
    ]);
    expect(rows).toEqual([
      { path: "a", values: ["1", "2"], isDifferent: true },
      { path: "b.c", values: ["x y", "x y"], isDifferent: false },
    ]);
    expect(toggled("a,b", "a")).toBe("b");
    expect(toggled("b", "b")).toBeUndefined();
  });
});
