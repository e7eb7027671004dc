import type { Node } from "~/api/types";

/* What nodes have and what is free on them. Where a job goes is the planner's to say. */

export interface Amounts {
  cpu: number; // milli
  memory: number; // bytes
  gpus: Record<string, number>;
}

const amounts = (raw: Record<string, unknown>): Amounts => ({
  cpu: Number(raw["cpu_milli"] ?? 0),
  memory: Number(raw["memory_bytes"] ?? 0),
  gpus: { ...((raw["gpus"] ?? {}) as Record<string, number>) },
});

export const allocatable = (node: Node): Amounts => amounts(node.allocatable);
export const used = (node: Node): Amounts => amounts(node.used);
export const isOpen = (node: Node): boolean => node.is_ready && !node.is_cordoned && !node.quarantine;
export const gpuCount = (of: Amounts): number => Object.values(of.gpus).reduce((sum, count) => sum + count, 0);

const NEVER = ["never_fits", "no_matching_node", "too_large"];

/** Whether a job waits for what these nodes cannot give, even when they are empty: then no place in the queue helps. */
export const isBeyond = (reason: { code: string }): boolean => NEVER.includes(reason.code);

/** The GPU models that the nodes have, each once. */
export const modelsOf = (nodes: readonly Node[]): string[] => [
  ...new Set(nodes.flatMap((node) => Object.keys(allocatable(node).gpus))),
];

export function free(node: Node): Amounts {
  const [all, taken] = [allocatable(node), used(node)];
  const gpus = Object.fromEntries(
    Object.entries(all.gpus).map(([model, count]) => [model, Math.max(0, count - (taken.gpus[model] ?? 0))]),
  );
  return { cpu: Math.max(0, all.cpu - taken.cpu), memory: Math.max(0, all.memory - taken.memory), gpus };
}
