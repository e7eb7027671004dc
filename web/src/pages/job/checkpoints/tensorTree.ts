import type { Tensor, TensorFigures } from "~/api/types";

/* A tree of tensors by the dots in their names: `model.blocks.0.attn.weight` is in model, blocks, 0 and attn. */

export interface Leaf {
  tensor: Tensor;
  /** The rest of the name below its branch. */
  label: string;
}

export interface Branch {
  path: string;
  label: string;
  branches: Branch[];
  leaves: Leaf[];
  /** Number of tensors below. */
  count: number;
  elements: number;
  sizeBytes: number;
  /** Contains only optimizer state. */
  isOptimizer: boolean;
}

/** `isMarked`: optimizer state whose parent is not marked. */
export type TreeRow = { depth: number; isMarked: boolean } & ({ isOpen: boolean; branch: Branch } | { leaf: Leaf });

const DEEPEST = 24; // levels: a name with a thousand dots is an attack

/** The tree in the order of `tensors`. A branch with a single child is merged with it to one row: `head.weight`. */
export function treeOf(tensors: readonly Tensor[]): Branch {
  const root = branchOf("", "");
  const known = new Map([["", root]]);
  for (const tensor of tensors) {
    const every = tensor.name.split(".");
    const parts = every.length > DEEPEST ? [...every.slice(0, DEEPEST - 1), every.slice(DEEPEST - 1).join(".")] : every;
    let at = root;
    for (const [depth, part] of parts.slice(0, -1).entries()) {
      const path = parts.slice(0, depth + 1).join(".");
      let below = known.get(path);
      if (below === undefined) {
        below = branchOf(path, part);
        known.set(path, below);
        at.branches.push(below);
      }
      at = below;
    }
    at.leaves.push({ tensor, label: parts.at(-1) ?? tensor.name });
  }
  return shortened(withCounts(root));
}

function branchOf(path: string, label: string): Branch {
  return { path, label, branches: [], leaves: [], count: 0, elements: 0, sizeBytes: 0, isOptimizer: false };
}

function withCounts(branch: Branch): Branch {
  const below = branch.branches.map(withCounts);
  const of = (figure: (part: Branch) => number, own: (tensor: Tensor) => number) =>
    below.reduce((sum, part) => sum + figure(part), 0) + branch.leaves.reduce((sum, leaf) => sum + own(leaf.tensor), 0);
  return {
    ...branch,
    branches: below,
    isOptimizer:
      below.every((part) => part.isOptimizer) && branch.leaves.every((leaf) => leaf.tensor.kind === "optimizer"),
    count: of(
      (part) => part.count,
      () => 1,
    ),
    elements: of(
      (part) => part.elements,
      (tensor) => tensor.count,
    ),
    sizeBytes: of(
      (part) => part.sizeBytes,
      (tensor) => tensor.size_bytes ?? 0,
    ),
  };
}

function shortened(branch: Branch): Branch {
  const branches: Branch[] = [];
  const leaves = [...branch.leaves];
  for (let below of branch.branches.map(shortened)) {
    const [onlyLeaf] = below.leaves;
    const [onlyBranch] = below.branches;
    if (below.branches.length === 0 && below.leaves.length === 1 && onlyLeaf !== undefined) {
      leaves.push({ ...onlyLeaf, label: `${below.label}.${onlyLeaf.label}` });
      continue;
    }
    if (below.leaves.length === 0 && below.branches.length === 1 && onlyBranch !== undefined) {
      below = { ...onlyBranch, label: `${below.label}.${onlyBranch.label}` };
    }
    branches.push(below);
  }
  return { ...branch, branches, leaves };
}

/** The visible rows: those below branches for which `isOpen` is true. */
export function rowsOf(root: Branch, isOpen: (branch: Branch, depth: number) => boolean): TreeRow[] {
  const rows: TreeRow[] = [];
  const walk = (branch: Branch, depth: number, isInMarked: boolean) => {
    for (const leaf of branch.leaves) {
      rows.push({ depth, leaf, isMarked: !isInMarked && leaf.tensor.kind === "optimizer" });
    }
    for (const below of branch.branches) {
      const open = isOpen(below, depth);
      rows.push({ depth, branch: below, isOpen: open, isMarked: !isInMarked && below.isOptimizer });
      if (open) walk(below, depth + 1, isInMarked || below.isOptimizer);
    }
  };
  walk(root, 0, false);
  return rows;
}

/** Number of NaN and infinite elements in a branch, as far as statistics are known. */
export function nonFiniteIn(branch: Branch, figures: ReadonlyMap<string, TensorFigures>): number {
  const own = branch.leaves.reduce((sum, leaf) => sum + nonFiniteCount(figures.get(leaf.tensor.name)), 0);
  return branch.branches.reduce((sum, below) => sum + nonFiniteIn(below, figures), own);
}

export const nonFiniteCount = (found: TensorFigures | undefined): number =>
  (found?.nan_count ?? 0) + (found?.infinite_count ?? 0);
