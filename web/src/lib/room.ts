import type { Node } from "~/api/types";

/* What is free on nodes, and how much of a gang would find a place. The planner decides; this is what it would begin with. */

export interface Amounts {
  cpu: number; // milli
  memory: number; // bytes
  gpus: Record<string, number>;
}

export interface Ask {
  role: string;
  replicas: number;
  cpu: number;
  memory: number;
  gpus: number;
  models: string[];
}

const amounts = (raw: Record<string, unknown>): Amounts => ({
  cpu: Number(raw["cpu_milli"] ?? 0),
  memory: Number(raw["memory_bytes"] ?? 0),
  gpus: { ...((raw["gpus"] ?? {}) as Record<string, number>) },
});

export const allocatable = (node: Node): Amounts => amounts(node.allocatable);
export const used = (node: Node): Amounts => amounts(node.used);
export const isOpen = (node: Node): boolean => node.is_ready && !node.is_cordoned;
export const gpuCount = (of: Amounts): number => Object.values(of.gpus).reduce((sum, count) => sum + count, 0);

export function free(node: Node): Amounts {
  const [all, taken] = [allocatable(node), used(node)];
  const gpus = Object.fromEntries(
    Object.entries(all.gpus).map(([model, count]) => [model, Math.max(0, count - (taken.gpus[model] ?? 0))]),
  );
  return { cpu: Math.max(0, all.cpu - taken.cpu), memory: Math.max(0, all.memory - taken.memory), gpus };
}

const SUFFIX: Record<string, number> = { k: 1e3, M: 1e6, G: 1e9, T: 1e12, Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40 };

export function milli(text: unknown): number {
  if (text === null || text === undefined) return 0;
  const word = String(text);
  return word.endsWith("m") ? Number(word.slice(0, -1)) : Number(word) * 1000;
}

export function byteCount(text: unknown): number {
  const match = String(text ?? "").match(/^([\d.]+)\s*([kMGT]i?)?B?$/);
  return match ? Number(match[1]) * (SUFFIX[match[2] ?? ""] ?? 1) : 0;
}

/** What each role of a canonical spec asks for. */
export function asks(spec: object): Ask[] {
  const roles = (spec as { roles?: Record<string, { replicas?: number; resources?: Record<string, unknown> }> }).roles ?? {};
  return Object.entries(roles).map(([role, { replicas = 1, resources = {} }]) => ({
    role,
    replicas,
    cpu: milli(resources["cpu"]),
    memory: byteCount(resources["memory"]),
    gpus: Number(resources["gpus"] ?? 0),
    models: (resources["gpu_type"] as string[] | undefined) ?? [],
  }));
}

/** Nodes with the replicas that would go there, largest asks first, fullest node first; what is left over has no place. */
export function tryPlacing(nodes: readonly Node[], wanted: readonly Ask[]): { placed: Map<string, string[]>; left: number } {
  const room = nodes.filter(isOpen).map((node) => ({ name: node.name, free: free(node) }));
  const placed = new Map<string, string[]>();
  let left = 0;
  for (const ask of [...wanted].sort((a, b) => b.gpus - a.gpus || b.cpu - a.cpu)) {
    for (let index = 0; index < ask.replicas; index += 1) {
      const fitting = room.filter(({ free: has }) => fits(has, ask)).sort((a, b) => a.free.cpu - b.free.cpu);
      const chosen = fitting[0];
      if (chosen === undefined) {
        left += 1;
        continue;
      }
      take(chosen.free, ask);
      placed.set(chosen.name, [...(placed.get(chosen.name) ?? []), `${ask.role}-${index}`]);
    }
  }
  return { placed, left };
}

function modelFor(has: Amounts, ask: Ask): string | undefined {
  const models = ask.models.length > 0 ? ask.models : Object.keys(has.gpus);
  return models.find((model) => (has.gpus[model] ?? 0) >= ask.gpus);
}

function fits(has: Amounts, ask: Ask): boolean {
  return has.cpu >= ask.cpu && has.memory >= ask.memory && (ask.gpus === 0 || modelFor(has, ask) !== undefined);
}

function take(has: Amounts, ask: Ask): void {
  has.cpu -= ask.cpu;
  has.memory -= ask.memory;
  const model = ask.gpus > 0 ? modelFor(has, ask) : undefined;
  if (model !== undefined) has.gpus[model] = (has.gpus[model] ?? 0) - ask.gpus;
}
