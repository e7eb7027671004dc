/* Formatting of numbers, times and sizes for people. */

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(count: number | null | undefined): string {
  if (count === null || count === undefined || !Number.isFinite(count)) return "–";
  let value = count;
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1).replace(/\.0$/, "")} ${UNITS[unit]}`;
}

/** 45 s, 3 min 20 s, 2 h 5 min, 3 d 4 h. */
export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  const whole = Math.max(0, seconds);
  if (whole < 10) return `${whole.toFixed(whole < 1 ? 2 : 1)} s`;
  const s = Math.round(whole);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60 ? `${s % 60} s` : ""}`.trim();
  if (s < 86_400)
    return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60) || ""}${s % 3600 >= 60 ? " min" : ""}`.trim();
  return `${Math.floor(s / 86_400)} d ${Math.floor((s % 86_400) / 3600) || ""}${s % 86_400 >= 3600 ? " h" : ""}`.trim();
}

/** How long ago, in one unit; a clock that is ahead of ours says "now". */
export function age(iso: string, nowMs: number): string {
  const s = Math.floor((nowMs - Date.parse(iso)) / 1000);
  if (!Number.isFinite(s)) return "–";
  if (s < 5) return "now";
  if (s < 60) return `${s} s ago`;
  if (s < 3600) return `${Math.floor(s / 60)} min ago`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h ago`;
  return `${Math.floor(s / 86_400)} d ago`;
}

const LOCAL = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const CLOCK = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
});
const DAY = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });

export const localTime = (iso: string): string => (Number.isNaN(Date.parse(iso)) ? iso : LOCAL.format(new Date(iso)));
export const clockTime = (iso: string): string => (Number.isNaN(Date.parse(iso)) ? "" : CLOCK.format(new Date(iso)));
export const dayOf = (iso: string): string => (Number.isNaN(Date.parse(iso)) ? "" : DAY.format(new Date(iso)));
export const utcTime = (iso: string): string => `${iso.replace("T", " ").replace(/(\.\d+)?Z?$/, "")} UTC`;

export function pluralize(count: number, noun: string): string {
  return `${count.toLocaleString()} ${count === 1 || noun.endsWith("s") ? noun : `${noun}s`}`;
}

/** Small and large numbers in at most six characters or so; NaN and infinities by name. */
export function number(value: unknown): string {
  if (typeof value === "string") return value;
  if (typeof value !== "number") return value === null || value === undefined ? "–" : String(value);
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "∞" : "−∞";
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return value.toLocaleString();
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}

/** The sentence with a full stop, so that another one can follow. */
export const withFullStop = (sentence: string): string => (/[.!?…]\W?$/.test(sentence) ? sentence : `${sentence}.`);

/** A number of a wait reason, in the unit given by its name: cpu_milli 8000 is "CPU: 8". */
export function formatFigure(name: string, value: unknown): string {
  const unit = /(?:^|_)(cpu_milli|memory_bytes|gpus?)(?=_|$)/.exec(name)?.[1];
  const label = name
    .replace("cpu_milli", "CPU")
    .replace("memory_bytes", "memory")
    .replace(/gpu(?=s|_|$)/, "GPU")
    .replaceAll("_", " ");
  const formatted =
    typeof value !== "number"
      ? String(value)
      : unit === "cpu_milli"
        ? number(value / 1000)
        : unit === "memory_bytes"
          ? bytes(value)
          : number(value);
  return `${label}: ${formatted}`;
}

/**
 * The cause in an exit sentence, without "worker-0 failed with exit code 1", which the state shows already.
 * The whole sentence where there is no such prefix.
 */
export function withoutExitPrefix(sentence: string): string {
  const found = /^\S+-\d+ failed with exit code \d+(?:; its last line was)?: (.+)$/.exec(sentence);
  return found?.[1] ?? sentence;
}

/** "2 workers + 1 ps"; "2–3 workers" where `most` has the maximum of an elastic role. */
export function formatGang(roles: Record<string, number>, most: Record<string, number> = {}): string {
  return Object.entries(roles)
    .map(([role, count]) => {
      const up = most[role] ?? count;
      return up > count ? `${count.toLocaleString()}–${pluralize(up, role)}` : pluralize(count, role);
    })
    .join(" + ");
}

export const isInBytes = (name: string): boolean => /^system\/.*bytes(_s)?$/.test(name);

/** Formatter for a metric's values: names of platform metrics end with their unit. */
export function unitOf(name: string): (value: unknown) => string {
  if (!name.startsWith("system/")) return number;
  if (name.endsWith("bytes")) return (value) => bytes(value as number);
  if (name.endsWith("bytes_s")) return (value) => `${bytes(value as number)}/s`;
  if (name.endsWith("percent")) return (value) => `${number(value)} %`;
  return number;
}
