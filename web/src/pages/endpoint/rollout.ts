import type { DeploymentDetail, ServingReplica } from "~/api/types";

/* How far an update of a deployed model is, by its replicas. */

/** What a replica that is up is seen to do, in the order in which a line tells it. */
export const UP = ["ready", "starting", "queued", "draining"] as const;

export type Seen = (typeof UP)[number] | "ended";

export type Part = { revision: number } & Record<(typeof UP)[number], number>;

/** A replica's state; one whose job waits for a place is told apart from one that starts. */
export function seenState({ state, job_state }: Pick<ServingReplica, "state" | "job_state">): Seen {
  return state === "starting" && job_state === "queued" ? "queued" : state;
}

/** The replicas that are up by revision, the one that is to serve first. */
export function parts(deployment: Pick<DeploymentDetail, "replica_list" | "wanted">): Part[] {
  const found = new Map<number, Part>();
  for (const replica of deployment.replica_list ?? []) {
    const { revision } = replica;
    const state = seenState(replica);
    if (state === "ended") continue;
    const part = found.get(revision) ?? { revision, ready: 0, starting: 0, queued: 0, draining: 0 };
    part[state] += 1;
    found.set(revision, part);
  }
  const first = (part: Part) => (part.revision === deployment.wanted ? 1 : 0);
  return [...found.values()].sort((a, b) => first(b) - first(a) || b.revision - a.revision);
}

/** "2 ready, 1 starting". */
export function partWords(part: Part): string {
  return UP.filter((state) => part[state] > 0)
    .map((state) => `${part[state]} ${state}`)
    .join(", ");
}

/** The worst state of several deployed models, as one word for their endpoint. */
export function worst(states: readonly string[]): string {
  return ["failed", "degraded", "deploying", "undeploying", "ready"].find((state) => states.includes(state)) ?? "ended";
}
