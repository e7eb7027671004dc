import { describe, expect, it } from "vitest";
import type { JobSpec } from "~/api/types";
import { AS_IT_IS, changesOf, inWords, mistakeIn, soonerBy } from "./question";

const RIGID = { roles: { worker: { replicas: 2, resources: { gpus: 8 } }, ps: { replicas: 1 } } } as unknown as JobSpec;
const ELASTIC = { roles: { worker: { replicas: 8, min_replicas: 4 } } } as unknown as JobSpec;

describe("what if", () => {
  it("asks for what was written and for nothing else", () => {
    expect(changesOf(AS_IT_IS, RIGID)).toEqual({ changes: {}, cluster: null });
    const question = {
      ...AS_IT_IS,
      replicas: { worker: "16", ps: "" },
      gpus: "0.5",
      gpuType: "H100 or A100, L4",
      labels: "pool=a100, zone=",
      priority: "high",
      maxRunTime: "2h",
    };
    expect(changesOf(question, RIGID).changes).toEqual({
      roles: { worker: { replicas: 16 } },
      gpus: 0.5,
      gpu_type: ["H100", "A100", "L4"],
      node_selector: { pool: "a100", zone: null },
      priority: "high",
      max_run_time: "2h",
    });
  });

  it("takes a role, a model or a limit away", () => {
    const question = { ...AS_IT_IS, replicas: { ps: "0" }, gpuType: "any", maxRunTime: "none" };
    expect(changesOf(question, RIGID).changes).toEqual({
      roles: { ps: null, worker: { resources: { gpu_type: [] } } },
      max_run_time: null,
    });
  });

  it("lets an elastic role begin with fewer than it may now", () => {
    expect(changesOf({ ...AS_IT_IS, replicas: { worker: "2" } }, ELASTIC).changes).toEqual({
      roles: { worker: { replicas: 2, min_replicas: 2 } },
    });
    expect(changesOf({ ...AS_IT_IS, replicas: { worker: "2-16" } }, ELASTIC).changes).toEqual({
      roles: { worker: { replicas: 16, min_replicas: 2 } },
    });
  });

  it("thinks of other nodes", () => {
    const question = { ...AS_IT_IS, moreNodes: "4", like: "gpu-1", without: "gpu-2, gpu-3" };
    expect(changesOf(question, RIGID).cluster).toEqual({ more_nodes: 4, like: "gpu-1", without: ["gpu-2", "gpu-3"] });
    expect(inWords(question)).toBe("4 more nodes like gpu-1, without gpu-2, gpu-3");
  });

  it("says in words what is asked, and why something cannot be", () => {
    expect(inWords(AS_IT_IS)).toBe("As it is");
    expect(inWords({ ...AS_IT_IS, replicas: { worker: "1" }, gpus: "4" })).toBe("1 worker, 4 GPUs each");
    expect(mistakeIn(AS_IT_IS)).toBe("Change at least one thing.");
    expect(mistakeIn({ ...AS_IT_IS, like: "gpu-1" })).toBe("Change at least one thing.");
    expect(mistakeIn({ ...AS_IT_IS, labels: "a100" })).toContain("pool=a100");
    expect(mistakeIn({ ...AS_IT_IS, moreNodes: "4" })).toContain("Name a node");
    expect(mistakeIn({ ...AS_IT_IS, replicas: { worker: "3" } })).toBe("");
  });

  it("tells how much sooner it would start, where both are known", () => {
    const now = Date.parse("2026-11-22T09:00:00Z");
    const at = (likely_at: string | null) => ({ wait_reason: {}, start: { code: "expected", likely_at } });
    expect(soonerBy(at("2026-11-22T10:00:00Z"), { wait_reason: null }, now)).toBe(3600);
    expect(soonerBy(at("2026-11-22T10:00:00Z"), at("2026-11-22T10:30:00Z"), now)).toBe(-1800);
    expect(soonerBy(at(null), { wait_reason: null }, now)).toBeNull();
    expect(soonerBy(undefined, { wait_reason: null }, now)).toBeNull();
  });
});
