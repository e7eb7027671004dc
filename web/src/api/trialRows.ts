import type { TrialColumns } from "./types";

/* A study's trials, one object each, in order of their numbers. */

export interface TrialRow {
  number: number;
  state: string;
  job: string | null;
  reason: string;
  createdAt: string;
  endedAt: string | null;
  parameters: Record<string, unknown>;
  /** `null`: no value, or not a number. */
  metrics: Record<string, number | null>;
}

export interface Trials {
  rows: readonly TrialRow[];
  until: string;
}

export const NO_TRIALS: Trials = { rows: [], until: "" };

/** Merges changed columns into the known rows. Without a change the rows stay the same object. */
export function mergeColumns(known: Trials, columns: TrialColumns): Trials {
  const fresh = columns.number.map((number, i): TrialRow => {
    const pick = <T>(group: Record<string, readonly T[]>) =>
      Object.fromEntries(
        Object.entries(group)
          .filter(([, column]) => column[i] !== null && column[i] !== undefined)
          .map(([name, column]) => [name, column[i] as T]),
      );
    return {
      number,
      state: columns.state[i] ?? "running",
      job: columns.job[i] ?? null,
      reason: columns.reason[i] ?? "",
      createdAt: columns.created_at[i] ?? "",
      endedAt: columns.ended_at[i] ?? null,
      parameters: pick(columns.parameters as Record<string, unknown[]>),
      metrics: pick(columns.metrics),
    };
  });
  const byNumber = new Map(known.rows.map((row) => [row.number, row]));
  const changed = fresh.filter((row) => {
    const before = byNumber.get(row.number);
    return before === undefined || before.state !== row.state || before.endedAt !== row.endedAt;
  });
  if (changed.length === 0) return { rows: known.rows, until: columns.until };
  for (const row of changed) byNumber.set(row.number, row);
  return { rows: [...byNumber.values()].sort((a, b) => a.number - b.number), until: columns.until };
}

/** Replaces a running trial's state by that of its job, if the job does not run. Other rows stay the same objects. */
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

/** A trial's value of a metric, if it is finite and the trial has a result. */
export function valueOf(row: TrialRow, metric: string): number | null {
  const value = row.metrics[metric];
  return typeof value === "number" && Number.isFinite(value) && hasResult(row) ? value : null;
}

export const hasResult = (row: TrialRow): boolean => row.state === "succeeded" || row.state === "stopped";

export type Goal = "maximize" | "minimize";

export const isBetter = (a: number, b: number, goal: Goal): boolean => (goal === "maximize" ? a > b : a < b);

/** The best value so far, at each trial with a value. */
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

/** Numbers of the trials that no other trial dominates (is better in both metrics). */
export function paretoFront(
  points: readonly { number: number; x: number; y: number }[],
  goals: [Goal, Goal],
): Set<number> {
  const cost = (value: number, goal: Goal) => (goal === "minimize" ? value : -value);
  const costs = points
    .map((point) => ({ number: point.number, a: cost(point.x, goals[0]), b: cost(point.y, goals[1]) }))
    .sort((p, q) => p.a - q.a || p.b - q.b);
  const paretoNumbers = new Set<number>();
  let least = Number.POSITIVE_INFINITY;
  let lastA = Number.NaN;
  for (const point of costs) {
    if (point.b < least) {
      paretoNumbers.add(point.number);
      least = point.b;
      lastA = point.a;
    } else if (point.b === least && point.a === lastA) paretoNumbers.add(point.number);
  }
  return paretoNumbers;
}

/** At most `most` rows: the best fifth, and an even sample of the others, in order of their numbers. */
export function sampleTrials(rows: readonly TrialRow[], metric: string, goal: Goal, most: number): readonly TrialRow[] {
  if (rows.length <= most) return rows;
  const ranked = rows
    .filter((row) => valueOf(row, metric) !== null)
    .sort((p, q) => (goal === "minimize" ? 1 : -1) * ((valueOf(p, metric) ?? 0) - (valueOf(q, metric) ?? 0)));
  const paretoNumbers = new Set(ranked.slice(0, Math.floor(most / 5)));
  const others = rows.filter((row) => !paretoNumbers.has(row));
  const remaining = most - paretoNumbers.size;
  for (let i = 0; i < remaining; i += 1) {
    const row = others[Math.floor((i * others.length) / remaining)];
    if (row) paretoNumbers.add(row);
  }
  return rows.filter((row) => paretoNumbers.has(row));
}
