import { stringify } from "yaml";

/* Specs as YAML, as people would write them. */

const DEFAULTS: Record<string, unknown> = {
  args: [],
  env: {},
  secrets: [],
  mounts: [],
  labels: {},
  node_selector: {},
  metric_patterns: [],
  contract: "default",
  launcher: "auto",
  warm: "auto",
  sparse: false,
  project: "default",
  priority: 50,
  preemptible: true,
  placement: "beside",
  spread: false,
  max_restarts: 3,
  restart: "gang",
  gpus: 0,
  gpu_type: [],
  read_only: true,
  path: "",
};
const GRACE = { stop: 30, exit: 30, evaluator: 60, peers: 300 };

/** Without nulls and default values. */
function plain(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(plain);
  if (typeof value !== "object" || value === null) return value;
  const stated: Record<string, unknown> = {};
  for (const [key, item] of Object.entries(value)) {
    if (item === null || item === undefined || isDefault(key, item)) continue;
    const inner = plain(item);
    const isEmpty =
      typeof inner === "object" && inner !== null && !Array.isArray(inner) && Object.keys(inner).length === 0;
    if (isEmpty && key === "resources") continue;
    stated[key] = inner;
  }
  return stated;
}

function isDefault(key: string, value: unknown): boolean {
  if (key === "grace") return JSON.stringify(value) === JSON.stringify(GRACE);
  return key in DEFAULTS && JSON.stringify(DEFAULTS[key]) === JSON.stringify(value);
}

const ORDER = ["name", "project", "image", "code", "command", "args", "roles", "input", "output"];

/** The JSON merge patch (RFC 7396) from `from` to `to`. */
export function mergePatch(from: unknown, to: unknown): unknown {
  if (!isObject(from) || !isObject(to)) return to;
  const patch: Record<string, unknown> = {};
  for (const key of new Set([...Object.keys(from), ...Object.keys(to)])) {
    const [before, after] = [from[key] ?? null, to[key] ?? null];
    if (JSON.stringify(before) !== JSON.stringify(after)) patch[key] = mergePatch(before, after);
  }
  return patch;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** `digits-2` for a clone of `digits`, or with the next number that is not in `taken`. */
export function freeName(name: string, isClone: boolean, taken: readonly string[]): string {
  const stem = (isClone ? name.replace(/-\d{1,6}$/, "") : name).slice(0, 56).replace(/-+$/, "");
  let number = 2;
  while (taken.includes(`${stem}-${number}`)) number += 1;
  return `${stem}-${number}`;
}

/** A canonical spec as YAML, important fields first, without defaults. */
export function specYaml(spec: object): string {
  const found = plain(spec) as Record<string, unknown>;
  const rank = (key: string) => (ORDER.includes(key) ? ORDER.indexOf(key) : ORDER.length);
  const ordered = Object.fromEntries(Object.entries(found).sort(([a], [b]) => rank(a) - rank(b)));
  return stringify(ordered, { lineWidth: 0, flowCollectionPadding: false });
}

const STUDY_DEFAULTS: Record<string, unknown> = {
  scale: "linear",
  algorithm: "auto",
  measurement: "best",
  arguments: true,
};
const STUDY_ORDER = [
  "name",
  "project",
  "template",
  "parameters",
  "constraints",
  "metric",
  "goal",
  "metrics",
  "algorithm",
  "budget",
];

/** A study's canonical spec as YAML, without defaults. */
export function studyYaml(spec: object): string {
  const { template, metrics, ...rest } = spec as {
    template?: object | null;
    metrics?: { name: string; goal: string }[];
  };
  const stated = (value: unknown): unknown => {
    if (Array.isArray(value)) return value.map(stated);
    if (!isObject(value)) return value;
    const items = Object.entries(value).filter(([key, item]) => {
      const isEmpty = typeof item === "object" && item !== null && Object.keys(item).length === 0;
      return item !== null && item !== undefined && !isEmpty && STUDY_DEFAULTS[key] !== item;
    });
    return Object.fromEntries(items.map(([key, item]) => [key, stated(item)]));
  };
  const job = (template ? plain(template) : {}) as Record<string, unknown>;
  delete job["name"];
  delete job["project"];
  const first = metrics?.[0];
  const found: Record<string, unknown> = {
    ...(stated(rest) as Record<string, unknown>),
    ...(template ? { template: job } : {}),
    ...(metrics?.length === 1 && first ? { metric: first.name, goal: first.goal } : { metrics }),
  };
  if (found["project"] === "default") delete found["project"];
  const rank = (key: string) => (STUDY_ORDER.includes(key) ? STUDY_ORDER.indexOf(key) : STUDY_ORDER.length);
  const ordered = Object.fromEntries(Object.entries(found).sort(([a], [b]) => rank(a) - rank(b)));
  return stringify(ordered, { lineWidth: 0, flowCollectionPadding: false });
}
