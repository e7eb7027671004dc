import type { DeploymentDetail, ServingReplica } from "~/api/types";

/* How far an update of a deployed model is, by its replicas. */

/** What a replica that is up is seen to do, in the order in which a line tells it. */
export const UP_STATES = ["ready", "starting", "queued", "draining"] as const;

export type ReplicaStatus = (typeof UP_STATES)[number] | "ended";

export type RevisionPart = { revision: number } & Record<(typeof UP_STATES)[number], number>;

/** A replica's state; one whose job waits for a place is told apart from one that starts. */
export function replicaStatus({ state, job_state }: Pick<ServingReplica, "state" | "job_state">): ReplicaStatus {
  return state === "starting" && job_state === "queued" ? "queued" : state;
}

/** The replicas that are up by revision, the one that is to serve first. */
export function rolloutParts(deployment: Pick<DeploymentDetail, "replica_list" | "wanted">): RevisionPart[] {
  const found = new Map<number, RevisionPart>();
  for (const replica of deployment.replica_list ?? []) {
    const { revision } = replica;
    const state = replicaStatus(replica);
    if (state === "ended") continue;
    const part = found.get(revision) ?? { revision, ready: 0, starting: 0, queued: 0, draining: 0 };
    part[state] += 1;
    found.set(revision, part);
  }
  const first = (part: RevisionPart) => (part.revision === deployment.wanted ? 1 : 0);
  return [...found.values()].sort((a, b) => first(b) - first(a) || b.revision - a.revision);
}

/** "2 ready, 1 starting". */
export function formatPart(part: RevisionPart): string {
  return UP_STATES.filter((state) => part[state] > 0)
    .map((state) => `${part[state]} ${state}`)
    .join(", ");
}

/** The worst state of several deployed models, as one word for their endpoint. */
export function worstState(states: readonly string[]): string {
  return ["failed", "degraded", "deploying", "undeploying", "ready"].find((state) => states.includes(state)) ?? "ended";
}
