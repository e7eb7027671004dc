/* Scale of a time line, from shortly before now to the last event. */

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const SHORTEST = 60 * MINUTE;
const LONGEST = 168 * HOUR;
const SPANS = [1, 2, 4, 8, 12, 24, 48, 96, 168].map((hours) => hours * HOUR);
const STEPS = [5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 5760].map((minutes) => minutes * MINUTE);
const PAST = 0.12; // of the span, so that running jobs are seen to have started

export interface Scale {
  begin: number;
  end: number;
  /** Position of a time in percent from the left, clamped. */
  at: (ms: number) => number;
}

/** A scale that contains `nowMs` and all `moments` up to a week ahead. */
export function timeScale(nowMs: number, moments: readonly number[]): Scale {
  const farthest = Math.max(nowMs + SHORTEST, ...moments.filter(Number.isFinite));
  const span = SPANS.find((each) => nowMs + each >= farthest) ?? LONGEST;
  const [begin, end] = [nowMs - PAST * span, nowMs + span];
  return { begin, end, at: (ms) => (100 * (Math.min(Math.max(ms, begin), end) - begin)) / (end - begin) };
}

/** Round local times on the scale, `step` apart. */
function ticks(scale: Scale, step: number): number[] {
  const offset = new Date(scale.begin).getTimezoneOffset() * MINUTE;
  const first = Math.ceil((scale.begin - offset) / step) * step + offset;
  const found: number[] = [];
  for (let at = first; at < scale.end; at += step) found.push(at);
  return found;
}

const LETTER = 6.4; // px, of an axis' digits
const APART = 14; // px between two labels

export interface AxisLabel {
  at: number;
  text: string;
}

/** As many round times as fit on an axis of `width` pixels without touching each other or the label "now". */
export function axisLabels(scale: Scale, nowMs: number, width: number): AxisLabel[] {
  const x = (at: number) => (scale.at(at) / 100) * width;
  const half = (text: string) => (text.length * LETTER) / 2;
  const isClear = (a: AxisLabel, b: AxisLabel) => Math.abs(x(a.at) - x(b.at)) >= half(a.text) + half(b.text) + APART;
  for (const step of STEPS) {
    const all = ticks(scale, step).map((at) => ({ at, text: clock(at, nowMs) }));
    if (!all.every((label, i) => i === 0 || isClear(label, all[i - 1] ?? label))) continue;
    const now = { at: nowMs, text: "now" };
    return all.filter(
      (label) => isClear(label, now) && x(label.at) + half(label.text) <= width && x(label.at) >= half(label.text),
    );
  }
  return [];
}

const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const DAY = new Intl.DateTimeFormat(undefined, { month: "short", day: "2-digit" });

/** Local time, with the date where it is not today. */
export function clock(at: number | string, nowMs: number): string {
  const date = new Date(at);
  const isToday = date.toDateString() === new Date(nowMs).toDateString();
  return isToday ? CLOCK.format(date) : `${DAY.format(date)} ${CLOCK.format(date)}`;
}

interface Start {
  code: string;
  early_at?: string | null;
  likely_at?: string | null;
  late_at?: string | null;
}

/** "14:20" and its bounds "13:50–16:10", as `trainmaster queue` shows them; empty where unknown. */
export function formatStart(start: Start | null | undefined, nowMs: number): { about: string; between: string } {
  if (start?.code === "now") return { about: "now", between: "" };
  const { early_at: early, likely_at: likely, late_at: late } = start ?? {};
  const about = likely ? clock(likely, nowMs) : early ? `after ${clock(early, nowMs)}` : "";
  const between = early && likely ? `${clock(early, nowMs)}${late ? `–${clock(late, nowMs)}` : " or later"}` : "";
  return { about, between };
}
