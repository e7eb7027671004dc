import type { ChartSeries } from "~/api/types";

/* Series of the API as columns of a chart: a line, and the band between minimum and maximum of aggregated points. */

export interface Line {
  key: string;
  label: string;
  x: number[];
  y: (number | null)[];
  low: (number | null)[] | null;
  high: (number | null)[] | null;
  /** Count of points that are NaN or infinite: they cannot be drawn, but are mentioned. */
  notFinite: number;
}

const finite = (value: unknown): number | null => (typeof value === "number" && Number.isFinite(value) ? value : null);

export function lineOf(series: ChartSeries, label: string, by: "step" | "time"): Line {
  const base = { key: `${series.job}/${series.attempt}/${series.role}-${series.index}/${series.name}`, label };
  if (series.buckets) {
    const { steps, times_s, means, lows, highs, not_finite } = series.buckets;
    const bad = not_finite.reduce((sum, count) => sum + count, 0);
    return { ...base, ...inOrder(by === "step" ? steps : times_s, means, lows, highs), notFinite: bad };
  }
  const { steps = [], times_s = [], values = [] } = series.points ?? {};
  const y = values.map(finite);
  return {
    ...base,
    ...inOrder(by === "step" ? steps : times_s, y, null, null),
    notFinite: y.filter((value) => value === null).length,
  };
}

type Column = (number | null)[];

/** A restarted attempt repeats steps, and clocks go backwards: a chart needs x to increase. Later points win. */
function inOrder(
  x: number[],
  y: Column,
  low: Column | null,
  high: Column | null,
): Pick<Line, "x" | "y" | "low" | "high"> {
  const last = new Map(x.map((at, i) => [at, i]));
  const order = [...last.entries()].sort((a, b) => a[0] - b[0]).map(([, i]) => i);
  const pick = (column: Column) => order.map((i) => column[i] ?? null);
  return { x: order.map((i) => x[i] ?? 0), y: pick(y), low: low && pick(low), high: high && pick(high) };
}

/** Exponential moving average; `weight` of the past: 0 is the line itself. Missing values stay missing. */
export function smoothed(y: readonly (number | null)[], weight: number): (number | null)[] {
  if (weight <= 0) return [...y];
  let mean = 0;
  let share = 0;
  return y.map((value) => {
    if (value === null) return null;
    mean = mean * weight + value * (1 - weight);
    share = share * weight + (1 - weight);
    return mean / share;
  });
}
