import { describe, expect, it } from "vitest";
import { free, infeasibleHeadline, isSchedulable } from "./capacity";

describe("capacity of nodes", () => {
  it("is not what a quota refuses", () => {
    expect(["never_fits", "quota"].map((code) => infeasibleHeadline({ code }))).toEqual([
      "It cannot run on these nodes",
      "It can never start",
    ]);
  });

  const node = (name: string, gpus: number, used: number) => ({
    name,
    executor: "fake",
    labels: {},
    allocatable: { cpu_milli: 8000, memory_bytes: 2 ** 34, gpus: { A: gpus } },
    used: { cpu_milli: 0, memory_bytes: 0, gpus: { A: used } },
    is_ready: true,
    is_cordoned: false,
    seen_at: "",
  });

  it("is free if unused, never negative, and only on schedulable nodes", () => {
    expect(free(node("a", 4, 1)).gpus).toEqual({ A: 3 });
    expect(free(node("b", 4, 5)).gpus).toEqual({ A: 0 });
    const quarantine = { since: "", why: "uncorrectable ECC error in job x" };
    expect(isSchedulable({ ...node("a", 1, 0), quarantine })).toBe(false);
    expect([isSchedulable(node("a", 1, 0)), isSchedulable({ ...node("a", 1, 0), is_cordoned: true })]).toEqual([
      true,
      false,
    ]);
  });
});
