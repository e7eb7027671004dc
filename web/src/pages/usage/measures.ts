import type { UsageReport } from "~/api/types";

/* What a report shows: a time, a grouping, and one figure of each group. */

export const GROUPINGS = {
  project: "Project",
  user: "User",
  job: "Job",
  study: "Study",
  gpu_model: "GPU model",
  node: "Node",
} as const;

export const TIMES = {
  month: "This month",
  last: "Last month",
  days: "Last 30 days",
  year: "Last 12 months",
} as const;
export type Time = keyof typeof TIMES;

export type Measure = "cost" | "gpu_hours" | "cpu_hours";

/** Begin and end of a time (UTC, as the API's months), and the periods that it is drawn in. */
export function windowOf(time: Time, now: Date): { since: string; until?: string; interval: "day" | "month" } {
  const month = (back: number) => new Date(Date.UTC(now.getUTCFullYear(), now.getUTCMonth() - back, 1)).toISOString();
  if (time === "last") return { since: month(1), until: month(0), interval: "day" };
  if (time === "year") return { since: month(11), interval: "month" };
  if (time === "month") return { since: month(0), interval: "day" };
  const day = Date.UTC(now.getUTCFullYear(), now.getUTCMonth(), now.getUTCDate() - 29);
  return { since: new Date(day).toISOString(), interval: "day" };
}

/** The first figure that is not 0 for all: money where there are prices, cores where there are no GPUs. */
export function measureOf(report: UsageReport): Measure {
  if (Number(report.total.cost) > 0) return "cost";
  return report.total.gpu_hours > 0 ? "gpu_hours" : "cpu_hours";
}

export interface Bar {
  start: string;
  total: number;
  /** From the largest group to the smallest; those beyond the drawn ones are one part. */
  parts: { key: string; value: number }[];
}

export const SERIES = 8;

/** A bar for each period. `keys`: the groups with a colour of their own. */
export function barsOf(report: UsageReport, measure: Measure): { bars: Bar[]; keys: string[] } {
  const keys = [...new Set(report.groups.map((group) => group.key))].slice(0, SERIES);
  const bars = (report.periods ?? []).map((period) => {
    const values = new Map(period.values.map((value) => [value.key, Number(value[measure])]));
    const total = [...values.values()].reduce((sum, value) => sum + value, 0);
    const drawn = keys.flatMap((key) => (values.get(key) ? [{ key, value: values.get(key) ?? 0 }] : []));
    const rest = total - drawn.reduce((sum, part) => sum + part.value, 0);
    return { start: period.start, total, parts: rest > 1e-9 ? [...drawn, { key: "", value: rest }] : drawn };
  });
  return { bars, keys };
}

export function amount(value: string | number, currency = ""): string {
  const text = Number(value).toLocaleString(undefined, { minimumFractionDigits: 2, maximumFractionDigits: 2 });
  return currency ? `${text} ${currency}` : text;
}

export const hours = (value: number): string =>
  value.toLocaleString(undefined, { minimumFractionDigits: 1, maximumFractionDigits: 1 });
