import { describe, expect, it } from "vitest";
import { freeName, mergePatch } from "./specYaml";

describe("a clone", () => {
  it("is a merge patch of its original", () => {
    const spec = {
      name: "a",
      env: { LR: "1", SEED: "7" },
      args: ["x"],
      roles: { worker: { replicas: 2 } },
      image: null,
    };
    const edited = { ...spec, name: "a-2", env: { LR: "2" }, args: ["x", "y"], roles: { worker: { replicas: 4 } } };
    expect(mergePatch(spec, edited)).toEqual({
      name: "a-2",
      env: { LR: "2", SEED: null },
      args: ["x", "y"],
      roles: { worker: { replicas: 4 } },
    });
    expect(mergePatch(spec, spec)).toEqual({});
  });

  it("gets the next free name", () => {
    expect(freeName("resnet-50", false, ["resnet-50"])).toBe("resnet-50-2");
    expect(freeName("digits-2", true, ["digits", "digits-2", "digits-3"])).toBe("digits-4");
    expect(freeName("a".repeat(63), false, [])).toBe(`${"a".repeat(56)}-2`);
  });
});
