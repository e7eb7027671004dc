import { describe, expect, it } from "vitest";
import { lineOf, smoothed } from "./series";

describe("charts", () => {
  const series = { job: "j", attempt: 1, role: "worker", index: 0, name: "loss", kind: "scalar", count: 3 } as const;

  it("sort by x after repeated steps, and count non-finite points", () => {
    const line = lineOf(
      { ...series, points: { steps: [1, 3, 2, 3], times_s: [1, 2, 3, 4], values: [1, 2, "NaN", 4] } },
      "loss",
      "step",
    );
    expect([line.x, line.y, line.notFinite]).toEqual([[1, 2, 3], [1, null, 4], 1]);
  });

  it("are smoothed without a start bias", () => {
    expect(smoothed([2, 2, null, 2], 0.9)).toEqual([2, 2, null, 2]);
  });
});
