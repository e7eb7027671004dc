import type { WhatIfChanges } from "~/api/planner";
import type { JobSpec } from "~/api/types";
import { pluralize } from "~/lib/format";

/* A what-if question: changes of the job or of the cluster. Blank fields stay unchanged. */

export interface Question {
  /** Replicas by role, as typed: `16`, or `4-16` for an elastic role. */
  replicas: Readonly<Record<string, string>>;
  gpus: string;
  gpuType: string;
  labels: string;
  priority: string;
  maxRunTime: string;
  moreNodes: string;
  like: string;
  without: string;
}

export const UNCHANGED: Question = {
  replicas: {},
  gpus: "",
  gpuType: "",
  labels: "",
  priority: "",
  maxRunTime: "",
  moreNodes: "",
  like: "",
  without: "",
};

const NO_LIMIT = new Set(["none", "off", "no limit"]);
const listed = (text: string): string[] => text.split(/[\s,]+/).filter(Boolean);
const counts = (question: Question) => Object.entries(question.replicas).filter(([, text]) => text.trim() !== "");

/** An error message, or empty. The server validates the values. */
export function validateQuestion(question: Question): string {
  const parts = [
    ...Object.values(question.replicas),
    ...Object.entries(question).map(([name, text]) => (name === "like" ? "" : text)),
  ];
  if (parts.every((text) => typeof text !== "string" || text.trim() === "")) return "Change at least one field.";
  if (listed(question.labels).some((label) => !/^[^=]+=/.test(label)))
    return "Write labels as pool=a100, separated by commas; pool= removes one.";
  if (question.moreNodes.trim() !== "" && !/^\d+$/.test(question.moreNodes.trim()))
    return "Additional nodes is a number, such as 4.";
  if (Number(question.moreNodes) > 0 && question.like.trim() === "")
    return "Name the node that additional nodes are like.";
  return "";
}

/** The question for the API. */
export function toChanges(question: Question, spec: Pick<JobSpec, "roles">): WhatIfChanges {
  const changes: Record<string, unknown> = {};
  const roles: Record<string, Record<string, unknown> | null> = {};
  for (const [role, text] of counts(question)) roles[role] = replicasOf(text.trim(), spec.roles?.[role]?.min_replicas);
  if (question.gpus.trim()) changes["gpus"] = numberOr(question.gpus);
  const models = question.gpuType
    .split(/,|\s+or\s+/)
    .map((model) => model.trim())
    .filter(Boolean);
  if (models.length === 1 && models[0] === "any") {
    for (const [role, { resources }] of Object.entries(spec.roles ?? {}))
      if (roles[role] !== null && resources?.gpus) roles[role] = { ...roles[role], resources: { gpu_type: [] } };
  } else if (models.length > 0) changes["gpu_type"] = models;
  const labels = listed(question.labels).map((label) => label.split("=", 2) as [string, string]);
  if (labels.length > 0)
    changes["node_selector"] = Object.fromEntries(labels.map(([key, value]) => [key, value || null]));
  if (question.priority.trim()) changes["priority"] = numberOr(question.priority);
  const longest = question.maxRunTime.trim();
  if (longest) changes["max_run_time"] = NO_LIMIT.has(longest) ? null : longest;
  if (Object.keys(roles).length > 0) changes["roles"] = roles;
  const [more, without] = [Number(question.moreNodes), listed(question.without)];
  const cluster =
    more > 0 || without.length > 0 ? { more_nodes: more, like: question.like.trim() || null, without } : null;
  return { changes, cluster };
}

/** `16` replicas; `4-16` minimum and maximum of an elastic role; `0` removes the role. */
function replicasOf(text: string, fewest: number | null | undefined): Record<string, unknown> | null {
  const span = /^(\d+)\s*(?:-|–|to|\.\.)\s*(\d+)$/.exec(text);
  if (span) return { min_replicas: Number(span[1]), replicas: Number(span[2]) };
  if (/^0+$/.test(text)) return null;
  const replicas = numberOr(text);
  const isFewer = typeof replicas === "number" && fewest != null && replicas < fewest;
  return isFewer ? { replicas, min_replicas: replicas } : { replicas };
}

const numberOr = (text: string): number | string => (/^\d+(\.\d+)?$/.test(text.trim()) ? Number(text) : text.trim());

/** "16 workers, 4 GPUs each, with 2 more nodes like gpu-1". */
export function questionText(question: Question): string {
  const gpus = question.gpus.trim();
  const more = Number(question.moreNodes);
  const parts = [
    ...counts(question).map(([role, text]) => pluralize(Number(text), role).replace(/^\S+/, text.trim())),
    gpus && `${gpus} GPU${gpus === "1" ? "" : "s"} each`,
    question.gpuType.trim() && (question.gpuType.trim() === "any" ? "any GPU model" : `on ${question.gpuType.trim()}`),
    listed(question.labels).join(", "),
    question.priority.trim() && `priority ${question.priority.trim()}`,
    question.maxRunTime.trim() &&
      (NO_LIMIT.has(question.maxRunTime.trim()) ? "no run time limit" : `max run time ${question.maxRunTime.trim()}`),
    more > 0 && `${more.toLocaleString()} more ${more === 1 ? "node" : "nodes"} like ${question.like.trim()}`,
    question.without.trim() && `without ${listed(question.without).join(", ")}`,
  ].filter(Boolean);
  return parts.join(", ") || "Unchanged";
}

interface StartForecast {
  wait_reason?: unknown;
  start?: { code: string; likely_at?: string | null } | null;
}

/** Seconds that `found` starts earlier than `base`; null if one of the two is unknown. */
export function soonerBy(base: StartForecast | undefined, found: StartForecast, nowMs: number): number | null {
  const [before, after] = [startOf(base, nowMs), startOf(found, nowMs)];
  return before === null || after === null ? null : (before - after) / 1000;
}

function startOf(found: StartForecast | undefined, nowMs: number): number | null {
  if (found === undefined) return null;
  if (!found.wait_reason || found.start?.code === "now") return nowMs;
  return found.start?.likely_at ? Date.parse(found.start.likely_at) : null;
}
