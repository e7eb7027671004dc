import { describe, expect, it } from "vitest";
import type { JobSpec } from "~/api/types";
import { UNCHANGED, toChanges, questionText, validateQuestion, soonerBy } from "./question";

const RIGID = { roles: { worker: { replicas: 2, resources: { gpus: 8 } }, ps: { replicas: 1 } } } as unknown as JobSpec;
const ELASTIC = { roles: { worker: { replicas: 8, min_replicas: 4 } } } as unknown as JobSpec;

describe("what if", () => {
  it("contains only filled fields", () => {
    expect(toChanges(UNCHANGED, RIGID)).toEqual({ changes: {}, cluster: null });
    const question = {
      ...UNCHANGED,
      replicas: { worker: "16", ps: "" },
      gpus: "0.5",
      gpuType: "H100 or A100, L4",
      labels: "pool=a100, zone=",
      priority: "high",
      maxRunTime: "2h",
    };
    expect(toChanges(question, RIGID).changes).toEqual({
      roles: { worker: { replicas: 16 } },
      gpus: 0.5,
      gpu_type: ["H100", "A100", "L4"],
      node_selector: { pool: "a100", zone: null },
      priority: "high",
      max_run_time: "2h",
    });
  });

  it("removes a role, a model or a limit", () => {
    const question = { ...UNCHANGED, replicas: { ps: "0" }, gpuType: "any", maxRunTime: "none" };
    expect(toChanges(question, RIGID).changes).toEqual({
      roles: { ps: null, worker: { resources: { gpu_type: [] } } },
      max_run_time: null,
    });
  });

  it("lowers the minimum of an elastic role", () => {
    expect(toChanges({ ...UNCHANGED, replicas: { worker: "2" } }, ELASTIC).changes).toEqual({
      roles: { worker: { replicas: 2, min_replicas: 2 } },
    });
    expect(toChanges({ ...UNCHANGED, replicas: { worker: "2-16" } }, ELASTIC).changes).toEqual({
      roles: { worker: { replicas: 16, min_replicas: 2 } },
    });
  });

  it("changes the cluster", () => {
    const question = { ...UNCHANGED, moreNodes: "4", like: "gpu-1", without: "gpu-2, gpu-3" };
    expect(toChanges(question, RIGID).cluster).toEqual({ more_nodes: 4, like: "gpu-1", without: ["gpu-2", "gpu-3"] });
    expect(questionText(question)).toBe("4 more nodes like gpu-1, without gpu-2, gpu-3");
  });

  it("describes and validates a question", () => {
    expect(questionText(UNCHANGED)).toBe("Unchanged");
    expect(questionText({ ...UNCHANGED, replicas: { worker: "1" }, gpus: "4" })).toBe("1 worker, 4 GPUs each");
    expect(validateQuestion(UNCHANGED)).toBe("Change at least one field.");
    expect(validateQuestion({ ...UNCHANGED, like: "gpu-1" })).toBe("Change at least one field.");
    expect(validateQuestion({ ...UNCHANGED, labels: "a100" })).toContain("pool=a100");
    expect(validateQuestion({ ...UNCHANGED, moreNodes: "4" })).toContain("Name the node");
    expect(validateQuestion({ ...UNCHANGED, replicas: { worker: "3" } })).toBe("");
  });

  it("computes how much sooner a job would start", () => {
    const now = Date.parse("2026-11-22T09:00:00Z");
    const at = (likely_at: string | null) => ({ wait_reason: {}, start: { code: "expected", likely_at } });
    expect(soonerBy(at("2026-11-22T10:00:00Z"), { wait_reason: null }, now)).toBe(3600);
    expect(soonerBy(at("2026-11-22T10:00:00Z"), at("2026-11-22T10:30:00Z"), now)).toBe(-1800);
    expect(soonerBy(at(null), { wait_reason: null }, now)).toBeNull();
    expect(soonerBy(undefined, { wait_reason: null }, now)).toBeNull();
  });
});
