import { expect, it } from "vitest";
import type { UsageReport } from "~/api/types";
import { barsOf, measureOf, windowOf } from "./measures";

const NOW = new Date("2026-03-05T10:00:00Z");
const total = {
  jobs: 1,
  gpu_hours: 0,
  cpu_hours: 3,
  memory_gib_hours: 0,
  cost: "0.00",
  lost_gpu_hours: 0,
  lost_cost: "0",
};

const report = (figures: Partial<typeof total>, values: Record<string, number>[]): UsageReport => ({
  since: "2026-03-01T00:00:00Z",
  until: "2026-03-05T10:00:00Z",
  currency: "USD",
  group_by: "project",
  groups: Array.from({ length: 10 }, (_, i) => ({ ...total, key: `p${i}` })),
  total: { ...total, ...figures },
  periods: values.map((each, i) => ({
    start: `2026-03-0${i + 1}T00:00:00Z`,
    end: `2026-03-0${i + 2}T00:00:00Z`,
    values: Object.entries(each).map(([key, cpu]) => ({ key, gpu_hours: 0, cpu_hours: cpu, cost: "0" })),
  })),
});

it("begins and ends at months and days of UTC", () => {
  expect(windowOf("month", NOW)).toEqual({ since: "2026-03-01T00:00:00.000Z", interval: "day" });
  expect(windowOf("last", NOW)).toEqual({
    since: "2026-02-01T00:00:00.000Z",
    until: "2026-03-01T00:00:00.000Z",
    interval: "day",
  });
  expect(windowOf("days", NOW)).toEqual({ since: "2026-02-04T00:00:00.000Z", interval: "day" });
  expect(windowOf("year", NOW)).toEqual({ since: "2025-04-01T00:00:00.000Z", interval: "month" });
});

it("shows money where there are prices, and cores where there are no GPUs", () => {
  expect(measureOf(report({ cost: "1.00", gpu_hours: 2 }, []))).toBe("cost");
  expect(measureOf(report({ gpu_hours: 2 }, []))).toBe("gpu_hours");
  expect(measureOf(report({}, []))).toBe("cpu_hours");
});

it("draws the largest groups, and the others as one part", () => {
  const { bars, keys } = barsOf(report({}, [{ p0: 2, p9: 1 }, {}]), "cpu_hours");
  expect(keys).toHaveLength(8);
  expect(bars[0]).toEqual({
    start: "2026-03-01T00:00:00Z",
    total: 3,
    parts: [
      { key: "p0", value: 2 },
      { key: "", value: 1 },
    ],
  });
  expect(bars[1]?.parts).toEqual([]);
});
