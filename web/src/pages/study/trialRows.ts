import type { Parameter, TrialColumns } from "~/api/types";

/* A study's trials as its page keeps them: one object each, in order of their numbers. */

export interface TrialRow {
  number: number;
  state: string;
  job: string | null;
  reason: string;
  createdAt: string;
  endedAt: string | null;
  parameters: Record<string, unknown>;
  /** `null`: it has none, or what came was no number. */
  metrics: Record<string, number | null>;
}

export interface Trials {
  rows: readonly TrialRow[];
  until: string;
}

export const NO_TRIALS: Trials = { rows: [], until: "" };

/** What is told now laid over what was known. Where nothing has changed the rows stay the same object. */
export function laidOverColumns(known: Trials, told: TrialColumns): Trials {
  const fresh = told.number.map((number, i): TrialRow => {
    const pick = <T>(columns: Record<string, readonly T[]>) =>
      Object.fromEntries(
        Object.entries(columns)
          .filter(([, column]) => column[i] !== null && column[i] !== undefined)
          .map(([name, column]) => [name, column[i] as T]),
      );
    return {
      number,
      state: told.state[i] ?? "running",
      job: told.job[i] ?? null,
      reason: told.reason[i] ?? "",
      createdAt: told.created_at[i] ?? "",
      endedAt: told.ended_at[i] ?? null,
      parameters: pick(told.parameters as Record<string, unknown[]>),
      metrics: pick(told.metrics),
    };
  });
  const byNumber = new Map(known.rows.map((row) => [row.number, row]));
  const changed = fresh.filter((row) => {
    const before = byNumber.get(row.number);
    return before === undefined || before.state !== row.state || before.endedAt !== row.endedAt;
  });
  if (changed.length === 0) return { rows: known.rows, until: told.until };
  for (const row of changed) byNumber.set(row.number, row);
  return { rows: [...byNumber.values()].sort((a, b) => a.number - b.number), until: told.until };
}

/** With the state of its job where a trial is under way but its job is not. The others stay the same objects. */
export function withJobStates(
  rows: readonly TrialRow[],
  states: readonly (readonly [string, string])[],
): readonly TrialRow[] {
  if (states.length === 0) return rows;
  const byJob = new Map(states);
  return rows.map((row) => {
    const state = row.state === "running" && row.job !== null ? byJob.get(row.job) : undefined;
    return state === undefined ? row : { ...row, state };
  });
}

/** A trial's value of a metric, where it is a number that counts. */
export function valueOf(row: TrialRow, metric: string): number | null {
  const value = row.metrics[metric];
  return typeof value === "number" && Number.isFinite(value) && hasResult(row) ? value : null;
}

export const hasResult = (row: TrialRow): boolean => row.state === "succeeded" || row.state === "stopped";

export type Goal = "maximize" | "minimize";

export const isBetter = (a: number, b: number, goal: Goal): boolean => (goal === "maximize" ? a > b : a < b);

/** The best value up to each trial that has one. */
export function bestSoFar(rows: readonly TrialRow[], metric: string, goal: Goal): { x: number[]; y: number[] } {
  const [x, y]: [number[], number[]] = [[], []];
  let best: number | null = null;
  for (const row of rows) {
    const value = valueOf(row, metric);
    if (value === null) continue;
    if (best === null || isBetter(value, best, goal)) best = value;
    x.push(row.number);
    y.push(best);
  }
  return { x, y };
}

/** Numbers of the trials that no other one betters in both. */
export function front(points: readonly { number: number; x: number; y: number }[], goals: [Goal, Goal]): Set<number> {
  const cost = (value: number, goal: Goal) => (goal === "minimize" ? value : -value);
  const turned = points
    .map((point) => ({ number: point.number, a: cost(point.x, goals[0]), b: cost(point.y, goals[1]) }))
    .sort((p, q) => p.a - q.a || p.b - q.b);
  const kept = new Set<number>();
  let least = Number.POSITIVE_INFINITY;
  let lastA = Number.NaN;
  for (const point of turned) {
    if (point.b < least) {
      kept.add(point.number);
      least = point.b;
      lastA = point.a;
    } else if (point.b === least && point.a === lastA) kept.add(point.number);
  }
  return kept;
}

/** At most `most` of the rows: the best fifth, and the others evenly. In order of their numbers. */
export function thinned(rows: readonly TrialRow[], metric: string, goal: Goal, most: number): readonly TrialRow[] {
  if (rows.length <= most) return rows;
  const ranked = rows
    .filter((row) => valueOf(row, metric) !== null)
    .sort((p, q) => (goal === "minimize" ? 1 : -1) * ((valueOf(p, metric) ?? 0) - (valueOf(q, metric) ?? 0)));
  const kept = new Set(ranked.slice(0, Math.floor(most / 5)));
  const others = rows.filter((row) => !kept.has(row));
  const room = most - kept.size;
  for (let i = 0; i < room; i += 1) {
    const row = others[Math.floor((i * others.length) / room)];
    if (row) kept.add(row);
  }
  return rows.filter((row) => kept.has(row));
}

/** What is written where a trial has no such parameter. */
export const ABSENT = "–";

export interface Axis {
  /** From 0 to 1; `null`: no number, or none that a logarithm knows. */
  place: (value: unknown) => number | null;
  /** Where something is written. */
  ticks: readonly { at: number; text: string }[];
  isLog: boolean;
  /** Values in this order, each with a room of its own; else numbers. */
  choices: readonly unknown[] | null;
}

export const wordOf = (value: unknown): string => {
  if (value === undefined || value === null) return ABSENT;
  if (typeof value === "number") return short(value);
  return String(value);
};

/** An axis of a parameter, by its own range and scale. */
export function parameterAxis(parameter: Parameter): Axis {
  if (parameter.type === "categorical" || parameter.type === "discrete") {
    const values = [...(parameter.values ?? [])];
    if (parameter.type === "discrete") values.sort((a, b) => Number(a) - Number(b));
    const at = (i: number) => (i + 0.5) / values.length;
    const step = Math.ceil(values.length / 8);
    return {
      place: (value) => {
        const i = values.findIndex((one) => one === value);
        return i === -1 ? null : at(i);
      },
      ticks: values.map((value, i) => ({ at: at(i), text: wordOf(value) })).filter((_, i) => i % step === 0),
      isLog: false,
      choices: values,
    };
  }
  return numberAxis(parameter.min ?? 0, parameter.max ?? 1, parameter.scale ?? "linear");
}

export function numberAxis(low: number, high: number, scale: string = "linear"): Axis {
  const width = high - low;
  if (!(width > 0) || !Number.isFinite(width)) {
    return {
      place: (value) => (typeof value === "number" && Number.isFinite(value) ? 0.5 : null),
      ticks: [{ at: 0.5, text: short(low) }],
      isLog: false,
      choices: null,
    };
  }
  if (scale !== "linear" && low > 0) {
    const isTurned = scale === "reverse-log";
    const span = Math.log(high) - Math.log(low);
    const straight = (value: number) => (Math.log(Math.min(high, Math.max(low, value))) - Math.log(low)) / span;
    const place = (value: unknown) => {
      if (typeof value !== "number" || !Number.isFinite(value) || value <= 0) return null;
      return isTurned ? 1 - straight(low + high - value) : straight(value);
    };
    return { place, ticks: ticksOf(isTurned ? [low, high] : logTicks(low, high), place), isLog: true, choices: null };
  }
  const place = (value: unknown) =>
    typeof value === "number" && Number.isFinite(value) ? (value - low) / width : null;
  return { place, ticks: ticksOf(evenTicks(low, high), place), isLog: false, choices: null };
}

function ticksOf(values: readonly number[], place: (value: unknown) => number | null) {
  return values.map((value) => ({ at: place(value) ?? 0, text: short(value) }));
}

function logTicks(low: number, high: number): number[] {
  const decades: number[] = [];
  for (let power = Math.ceil(Math.log10(low) - 1e-9); power <= Math.floor(Math.log10(high) + 1e-9); power += 1) {
    decades.push(Number(`1e${power}`));
  }
  if (decades.length < 2) return [low, high];
  const step = Math.ceil(decades.length / 6);
  return decades.filter((_, i) => i % step === 0);
}

/** Round numbers between both ends. */
export function evenTicks(low: number, high: number, count = 5): number[] {
  const raw = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= raw) ?? raw;
  const found: number[] = [];
  for (
    let value = Math.ceil(low / step - 1e-9) * step;
    value <= high + step * 1e-9 && found.length < 20;
    value += step
  ) {
    found.push(Number(value.toPrecision(12)));
  }
  return found;
}

/** A number of an axis or a table, in few characters. */
export function short(value: number): string {
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e5))
    return value
      .toExponential(2)
      .replace(/\.?0+e/, "e")
      .replace("e+", "e");
  return String(Number(value.toPrecision(5)));
}

/** Both ends of a metric's values with a little air; of few far outliers not all, as they would leave no room for the rest. */
export function rangeOf(values: readonly number[]): { low: number; high: number } | null {
  if (values.length === 0) return null;
  const sorted = [...values].sort((a, b) => a - b);
  let [low, high] = [sorted[0] ?? 0, sorted.at(-1) ?? 0];
  const quarter = (part: number) => sorted[Math.round(part * (sorted.length - 1))] ?? 0;
  const width = quarter(0.75) - quarter(0.25);
  if (sorted.length >= 20 && width > 0) {
    low = Math.max(low, quarter(0.25) - 6 * width);
    high = Math.min(high, quarter(0.75) + 6 * width);
  }
  const air = (high - low || Math.abs(high) || 1) * 0.05;
  return { low: low - air, high: high + air };
}
