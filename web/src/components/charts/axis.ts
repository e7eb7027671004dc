import type { Parameter } from "~/api/types";

/* Axes of charts: from a value to its position, with ticks. */

/** Shown where a trial has no such parameter. */
export const ABSENT = "–";

export interface Axis {
  /** From 0 to 1; `null`: not a number, or not positive on a logarithmic axis. */
  position: (value: unknown) => number | null;
  /** Labels, and their positions. */
  ticks: readonly { at: number; text: string }[];
  isLog: boolean;
  /** Categorical values in order, each with its own band; `null`: a numeric axis. */
  choices: readonly unknown[] | null;
}

export const axisText = (value: unknown): string => {
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
      position: (value) => {
        const i = values.findIndex((known) => known === value);
        return i === -1 ? null : at(i);
      },
      ticks: values.map((value, i) => ({ at: at(i), text: axisText(value) })).filter((_, i) => i % step === 0),
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
      position: (value) => (typeof value === "number" && Number.isFinite(value) ? 0.5 : null),
      ticks: [{ at: 0.5, text: short(low) }],
      isLog: false,
      choices: null,
    };
  }
  if (scale !== "linear" && low > 0) {
    const isReversed = scale === "reverse-log";
    const span = Math.log(high) - Math.log(low);
    const straight = (value: number) => (Math.log(Math.min(high, Math.max(low, value))) - Math.log(low)) / span;
    const position = (value: unknown) => {
      if (typeof value !== "number" || !Number.isFinite(value) || value <= 0) return null;
      return isReversed ? 1 - straight(low + high - value) : straight(value);
    };
    return {
      position,
      ticks: ticksOf(isReversed ? [low, high] : logTicks(low, high), position),
      isLog: true,
      choices: null,
    };
  }
  const position = (value: unknown) =>
    typeof value === "number" && Number.isFinite(value) ? (value - low) / width : null;
  return { position, ticks: ticksOf(evenTicks(low, high), position), isLog: false, choices: null };
}

function ticksOf(values: readonly number[], position: (value: unknown) => number | null) {
  return values.map((value) => ({ at: position(value) ?? 0, text: short(value) }));
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

/** A number in few characters, for an axis or a table. */
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

/**
 * Range of a metric's values with some padding. Far outliers (over six times the interquartile range away) are cut off,
 * as they would leave no room for the rest. */
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
