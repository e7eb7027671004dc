import type { SimulationReport, SimulationResult } from "~/api/types";
import { pluralize } from "~/lib/format";
import type { Line } from "~/components/charts/series";

/* Requests and results of simulations on the platform's own history. */

export interface OtherCluster {
  more_nodes: number;
  like: string | null;
  without: string[];
}

const listed = (text: string): string[] => text.split(/[\s,]+/).filter(Boolean);

export const settingLabel = (setting: string): string => {
  const text = setting.replaceAll("_", " ").replace("gpu", "GPU");
  return text.charAt(0).toUpperCase() + text.slice(1);
};

export function parseCluster(more: string, like: string, without: string): OtherCluster | null {
  const [count, gone] = [Number(more) || 0, listed(without)];
  return count > 0 || gone.length > 0 ? { more_nodes: count, like: like.trim() || null, without: gone } : null;
}

/** An error message, or empty. The server validates the values. */
export function validateSimulation(policy: Readonly<Record<string, string>>, cluster: OtherCluster | null): string {
  if (Object.keys(policy).length === 0 && cluster === null) return "Change at least one field.";
  if (cluster !== null && cluster.more_nodes > 0 && cluster.like === null)
    return "Name the node that additional nodes are like.";
  return "";
}

/** "order fifo, 4 more nodes like gpu-1". */
export function describeChanges(policy: Readonly<Record<string, string>>, cluster: OtherCluster | null): string {
  const parts = Object.entries(policy).map(
    ([name, value]) => `${settingLabel(name).toLowerCase().replace("gpu", "GPU")} ${value}`,
  );
  if (cluster !== null && cluster.more_nodes > 0)
    parts.push(`${pluralize(cluster.more_nodes, "more node")} like ${cluster.like ?? ""}`);
  if (cluster !== null && cluster.without.length > 0) parts.push(`without ${cluster.without.join(", ")}`);
  const text = parts.join(", ");
  return text.charAt(0).toUpperCase() + text.slice(1);
}

export interface Figure {
  label: string;
  kind: "time" | "share" | "count";
  /** Which direction is better; null: neither. */
  better: "more" | "less" | null;
  of: (report: SimulationReport) => number | null | undefined;
  isShown?: (found: SimulationResult) => boolean;
}

const hasGpus = ({ before, after }: SimulationResult): boolean =>
  [before, after].some((report) => (report.gpus_over_time ?? []).length > 0);

export const FIGURES: readonly Figure[] = [
  { label: "Wait, mean", kind: "time", better: "less", of: (r) => r.wait_mean_s },
  { label: "Wait, p99", kind: "time", better: "less", of: (r) => r.wait_p99_s },
  { label: "Completion time, mean", kind: "time", better: "less", of: (r) => r.jct_mean_s },
  { label: "Completion time, median", kind: "time", better: "less", of: (r) => r.jct_p50_s },
  { label: "Completion time, p99", kind: "time", better: "less", of: (r) => r.jct_p99_s },
  { label: "Makespan", kind: "time", better: "less", of: (r) => r.makespan_s },
  { label: "GPUs in use", kind: "share", better: null, of: (r) => r.gpu_allocation, isShown: hasGpus },
  { label: "CPUs in use", kind: "share", better: null, of: (r) => r.cpu_allocation },
  { label: "Preemptions", kind: "count", better: "less", of: (r) => r.preemptions },
  { label: "Worst finish-time fairness", kind: "count", better: "less", of: (r) => r.worst_fairness },
  { label: "Finished jobs", kind: "count", better: "more", of: (r) => r.finished },
];

const SAME = 0.005; // relative to the value before: smaller differences are noise

/** The difference as text, and its colour: green if better, red if worse. */
export function differenceOf(figure: Figure, before: number | null | undefined, after: number | null | undefined) {
  if (typeof before !== "number" || typeof after !== "number") return { text: "–", tone: "dimmer" };
  const gap = after - before;
  if (Math.abs(gap) <= SAME * Math.abs(before)) return { text: "unchanged", tone: "dimmer" };
  const sign = gap > 0 ? "+" : "−";
  const size =
    figure.kind === "share"
      ? `${Math.abs(100 * gap).toFixed(1)} points`
      : figure.kind === "time" && before > 0
        ? `${Math.round(Math.abs((100 * gap) / before))} %`
        : String(Number(Math.abs(gap).toPrecision(3)));
  const isBetter = figure.better === null ? null : gap > 0 === (figure.better === "more");
  return { text: `${sign}${size}`, tone: isBetter === null ? "dim" : isBetter ? "tone-green" : "tone-red" };
}

/** A step function as a line of a chart; `x` in seconds since the first job arrived. */
export function overTime(label: string, points: readonly (readonly unknown[])[] | undefined): Line {
  const all = (points ?? []).map(([at, value]) => [Number(at), Number(value)] as const);
  return {
    key: label,
    label,
    x: all.map(([at]) => at),
    y: all.map(([, value]) => value),
    low: null,
    high: null,
    notFinite: 0,
  };
}
