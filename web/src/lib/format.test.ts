import { describe, expect, it } from "vitest";
import { age, bytes, withoutExitPrefix, duration, withFullStop, formatFigure, formatGang, number } from "./format";

describe("formatting", () => {
  it("chooses units for sizes, durations and ages", () => {
    expect([bytes(0), bytes(1536), bytes(2 ** 40), bytes(null)]).toEqual(["0 B", "1.5 KiB", "1 TiB", "–"]);
    expect([duration(45), duration(200), duration(7500), duration(90_000)]).toEqual([
      "45 s",
      "3 min 20 s",
      "2 h 5 min",
      "1 d 1 h",
    ]);
    expect(age("2026-11-21T07:00:10Z", Date.parse("2026-11-21T07:00:00Z"))).toBe("now"); // a clock that is ahead
    expect([number(Number.NaN), number("Infinity"), number(0.00001234), number(12480)]).toEqual([
      "NaN",
      "Infinity",
      "1.23e-5",
      "12,480",
    ]);
  });
});

describe("wait reasons and exit sentences", () => {
  it("end with a full stop and have units", () => {
    expect([withFullStop("Ask for less cpu"), withFullStop("It waits."), withFullStop("Is it `a`?")]).toEqual([
      "Ask for less cpu.",
      "It waits.",
      "Is it `a`?",
    ]);
    expect([
      formatFigure("cpu_milli", 8000),
      formatFigure("largest_cpu_milli", 2500),
      formatFigure("memory_bytes", 2 ** 34),
      formatFigure("free_memory_bytes", 2 ** 29),
      formatFigure("gpus", 4),
      formatFigure("largest_gpus", 2),
      formatFigure("node", "a_b"),
    ]).toEqual([
      "CPU: 8",
      "largest CPU: 2.5",
      "memory: 16 GiB",
      "free memory: 512 MiB",
      "GPUs: 4",
      "largest GPUs: 2",
      "node: a_b",
    ]);
  });

  it("start with the cause", () => {
    expect(withoutExitPrefix("worker-0 failed with exit code 1; its last line was: 'no data'.")).toBe("'no data'.");
    expect(withoutExitPrefix("worker-0 failed with exit code 1: 'ValueError: x' – its log shows where.")).toBe(
      "'ValueError: x' – its log shows where.",
    );
    expect(withoutExitPrefix("The node of worker-0 was lost.")).toBe("The node of worker-0 was lost.");
  });

  it("show the range of an elastic role", () => {
    expect(formatGang({ worker: 2, ps: 1 }, { worker: 3 })).toBe("2–3 workers + 1 ps");
  });
});
