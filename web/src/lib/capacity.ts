import type { Node } from "~/api/types";

/* Capacity of nodes, used and free. Placement is up to the planner. */

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
export const isSchedulable = (node: Node): boolean => node.is_ready && !node.is_cordoned && !node.quarantine;
export const gpuCount = (of: Amounts): number => Object.values(of.gpus).reduce((sum, count) => sum + count, 0);

/** The headline of a job that cannot start, whatever other jobs end. */
export const infeasibleHeadline = (reason: { code: string }): string =>
  reason.code === "quota" ? "It can never start" : "It cannot run on these nodes";

/** The GPU models that the nodes have, each once. */
export const gpuModels = (nodes: readonly Node[]): string[] => [
  ...new Set(nodes.flatMap((node) => Object.keys(allocatable(node).gpus))),
];

export function free(node: Node): Amounts {
  const [all, inUse] = [allocatable(node), used(node)];
  const gpus = Object.fromEntries(
    Object.entries(all.gpus).map(([model, count]) => [model, Math.max(0, count - (inUse.gpus[model] ?? 0))]),
  );
  return { cpu: Math.max(0, all.cpu - inUse.cpu), memory: Math.max(0, all.memory - inUse.memory), gpus };
}
