import { expect, it } from "vitest";
import { rolloutParts, formatPart, worstState } from "./rollout";

it("shows the progress of an update", () => {
  const replica = (revision: number, state: "ready" | "starting" | "draining" | "ended") =>
    ({ id: `${revision}${state}`, revision, state, job: "job-1", job_state: "running", created_at: "" }) as const;
  const waiting = { ...replica(2, "starting"), id: "2queued", job_state: "queued" } as const;
  const replica_list = [
    replica(1, "draining"),
    waiting,
    replica(2, "starting"),
    replica(1, "ready"),
    replica(2, "ready"),
    replica(1, "ended"),
  ];
  const found = rolloutParts({ wanted: 2, replica_list });
  expect(found.map((part) => [part.revision, formatPart(part)])).toEqual([
    [2, "1 ready, 1 starting, 1 queued"],
    [1, "1 ready, 1 draining"],
  ]);
  expect([worstState(["ready", "degraded"]), worstState([]), worstState(["undeploying"])]).toEqual([
    "degraded",
    "ended",
    "undeploying",
  ]);
});
