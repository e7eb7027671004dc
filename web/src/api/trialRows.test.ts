import { describe, expect, it } from "vitest";
import type { Parameter, TrialColumns } from "./types";
import { bestSoFar, paretoFront, mergeColumns, NO_TRIALS, sampleTrials, valueOf, withJobStates } from "./trialRows";
import { parameterAxis } from "~/components/charts/axis";

const columnsOf = (number: number[], states: string[], values: (number | null)[]): TrialColumns => ({
  number,
  state: states as TrialColumns["state"],
  job: number.map(() => null),
  reason: number.map(() => ""),
  created_at: number.map(() => "2026-01-01T00:00:00Z"),
  ended_at: states.map((state) => (state === "running" ? null : "2026-01-01T00:01:00Z")),
  parameters: { x: number.map((each) => each / 10), y: number.map(() => null) },
  metrics: { loss: values },
  until: "2026-01-01T00:02:00Z",
});

describe("trials", () => {
  const first = mergeColumns(NO_TRIALS, columnsOf([1, 2, 3], ["succeeded", "failed", "running"], [3, null, null]));

  it("are merged into known rows, which stay the same objects without changes", () => {
    expect(first.rows.map((row) => row.parameters)).toEqual([{ x: 0.1 }, { x: 0.2 }, { x: 0.3 }]);
    expect(mergeColumns(first, columnsOf([3], ["running"], [null])).rows).toBe(first.rows);
    const next = mergeColumns(first, columnsOf([3, 4], ["succeeded", "stopped"], [1, 2]));
    expect(bestSoFar(next.rows, "loss", "minimize")).toEqual({ x: [1, 3, 4], y: [3, 1, 1] });
    expect(next.rows.map((row) => valueOf(row, "loss"))).toEqual([3, null, 1, 2]);
  });

  it("are queued while their jobs are", () => {
    const rows = mergeColumns(NO_TRIALS, {
      ...columnsOf([1, 2], ["running", "succeeded"], [null, 1]),
      job: ["job-1", "job-2"],
    }).rows;
    const states = [
      ["job-1", "queued"] as const,
      ["job-2", "queued"] as const,
      ["job-of-a-namesake", "queued"] as const,
    ];
    expect(withJobStates(rows, states).map((row) => row.state)).toEqual(["queued", "succeeded"]);
    expect(withJobStates(rows, [])).toBe(rows);
  });

  it("keep the best in a sample", () => {
    const numbers = Array.from({ length: 1000 }, (_, i) => i + 1);
    const many = mergeColumns(
      NO_TRIALS,
      columnsOf(
        numbers,
        numbers.map(() => "succeeded"),
        numbers.map((each) => Math.abs(each - 500)),
      ),
    );
    const sample = sampleTrials(many.rows, "loss", "minimize", 100);
    expect(sample).toHaveLength(100);
    expect(sample.map((row) => row.number)).toContain(500);
  });

  it("have a Pareto front", () => {
    const points = [
      { number: 1, x: 1, y: 1 },
      { number: 2, x: 2, y: 2 },
      { number: 3, x: 3, y: 1 },
      { number: 4, x: 1, y: 1 },
    ];
    expect([...paretoFront(points, ["minimize", "maximize"])].sort()).toEqual([1, 2, 4]);
  });
});

describe("an axis", () => {
  const axis = (parameter: Partial<Parameter>) => parameterAxis(parameter as Parameter);

  it("uses the parameter's scale, and has no position for other values", () => {
    const log = axis({ type: "float", min: 0.01, max: 1, scale: "log" });
    expect([log.position(0.01), log.position(0.1), log.position(1)].map((place) => Number(place?.toFixed(6)))).toEqual([
      0, 0.5, 1,
    ]);
    expect([log.position(Number.NaN), log.position(undefined), log.position(-1), log.position("1")]).toEqual([
      null,
      null,
      null,
      null,
    ]);
    const turned = axis({ type: "float", min: 0.01, max: 1, scale: "reverse-log" });
    expect(Number(turned.position(0.91)?.toFixed(6))).toBe(0.5);
    const words = axis({ type: "categorical", values: ["a", true, 1] });
    expect([words.position("a"), words.position(true), words.position(1), words.position("1")]).toEqual([
      1 / 6,
      0.5,
      5 / 6,
      null,
    ]);
    expect(axis({ type: "integer", min: 3, max: 3 }).position(3)).toBe(0.5);
  });
});
