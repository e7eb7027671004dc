import { describe, expect, it } from "vitest";
import type { Tensor } from "~/api/types";
import { nonFiniteIn, rowsOf, treeOf } from "./tensorTree";

const tensor = (name: string, kind: Tensor["kind"] = "weight"): Tensor =>
  ({ name, kind, shape: [2], dtype: "float32", count: 2, size_bytes: 8, layer: "", file: "", note: "" }) as Tensor;

const labels = (names: (string | Tensor)[], isOpen = true) =>
  rowsOf(treeOf(names.map((name) => (typeof name === "string" ? tensor(name) : name))), () => isOpen).map((row) =>
    "leaf" in row ? `${"  ".repeat(row.depth)}${row.leaf.label}` : `${"  ".repeat(row.depth)}${row.branch.label}/`,
  );

describe("tensors as the tree of their names", () => {
  it("merges single-child branches, and hides closed ones", () => {
    expect(labels(["m.blocks.0.w", "m.blocks.0.b", "m.blocks.1.w", "head.w"])).toEqual([
      "head.w",
      "m.blocks/",
      "  1.w",
      "  0/",
      "    w",
      "    b",
    ]);
    expect(labels(["m.blocks.0.w", "m.blocks.0.b", "m.blocks.1.w"], false)).toEqual(["m.blocks/"]);
  });

  it("counts descendants, and marks the optimizer once", () => {
    const tree = treeOf([tensor("m.w"), tensor("m.b"), tensor("o.0.m", "optimizer"), tensor("o.0.v", "optimizer")]);
    expect(tree.branches.map((branch) => [branch.label, branch.count, branch.sizeBytes])).toEqual([
      ["m", 2, 16],
      ["o.0", 2, 16],
    ]);
    expect(rowsOf(tree, () => true).map((row) => row.isMarked)).toEqual([false, false, false, true, false, false]);
    expect(nonFiniteIn(tree, new Map([["m.b", { name: "m.b", nan_count: 2, infinite_count: 1 }]]))).toBe(3);
  });

  it("takes a name of a hundred thousand dots", () => {
    expect(labels([".".repeat(100_000), "a"])).toHaveLength(2);
  });
});
