import type { DeploymentDetail } from "~/api/types";

/* How far an update of a deployed model is, by its replicas. */

export interface Part {
  revision: number;
  ready: number;
  starting: number;
  draining: number;
}

/** The replicas that are up by revision, the one that is to serve first. */
export function parts(deployment: Pick<DeploymentDetail, "replica_list" | "wanted">): Part[] {
  const found = new Map<number, Part>();
  for (const { revision, state } of deployment.replica_list ?? []) {
    if (state === "ended") continue;
    const part = found.get(revision) ?? { revision, ready: 0, starting: 0, draining: 0 };
    part[state] += 1;
    found.set(revision, part);
  }
  const first = (part: Part) => (part.revision === deployment.wanted ? 1 : 0);
  return [...found.values()].sort((a, b) => first(b) - first(a) || b.revision - a.revision);
}

/** "2 ready, 1 starting". */
export function partWords(part: Part): string {
  const words = (["ready", "starting", "draining"] as const).filter((state) => part[state] > 0);
  return words.map((state) => `${part[state]} ${state}`).join(", ");
}

/** The worst state of several deployed models, as one word for their endpoint. */
export function worst(states: readonly string[]): string {
  return ["failed", "degraded", "deploying", "undeploying", "ready"].find((state) => states.includes(state)) ?? "ended";
}
