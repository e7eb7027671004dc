import type { DeploymentDetail, ServingReplica } from "~/api/types";

/* Progress of a deployed model's update, by its replicas. */

/** States of an active replica, in display order. */
export const UP_STATES = ["ready", "starting", "queued", "draining"] as const;

export type ReplicaStatus = (typeof UP_STATES)[number] | "ended";

export type RevisionPart = { revision: number } & Record<(typeof UP_STATES)[number], number>;

/** A replica's state; a starting one whose job is queued counts as queued. */
export function replicaStatus({ state, job_state }: Pick<ServingReplica, "state" | "job_state">): ReplicaStatus {
  return state === "starting" && job_state === "queued" ? "queued" : state;
}

/** Active replicas by revision, the target revision first. */
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

/** The worst state of an endpoint's deployed models. */
export function worstState(states: readonly string[]): string {
  return ["failed", "degraded", "deploying", "undeploying", "ready"].find((state) => states.includes(state)) ?? "ended";
}
