import { ChevronRight } from "lucide-react";
import { useMemo, useState } from "react";
import type { Tensor, TensorFigures } from "~/api/types";
import { bytes, pluralize, number } from "~/lib/format";
import { nonFiniteIn, nonFiniteCount, type Branch, rowsOf, treeOf } from "./tensorTree";
import { Histogram } from "~/pages/job/histogram";

const OPEN_DEPTH = 2; // levels that are expanded initially
const STEP = 18; // px to the right for each level

interface TensorsProps {
  tensors: readonly Tensor[];
  figures: ReadonlyMap<string, TensorFigures>;
  /** Expands the whole tree. */
  isSearched: boolean;
}

/** The tensors as a tree by name, each with its statistics. */
export function Tensors({ tensors, figures, isSearched }: TensorsProps) {
  const tree = useMemo(() => treeOf(tensors), [tensors]);
  const [openFrom, setOpenFrom] = useState(OPEN_DEPTH);
  // Branches whose state differs from the default of their depth.
  const [toggled, setToggled] = useState<ReadonlySet<string>>(new Set());
  // Tensors whose details are shown.
  const [expanded, setExpanded] = useState<ReadonlySet<string>>(new Set());
  // The optimizer's state is twice as large as the weights and less interesting: collapsed initially.
  const isOpenAtFirst = (branch: Branch, depth: number) =>
    depth < openFrom && (openFrom !== OPEN_DEPTH || tree.isOptimizer || !branch.isOptimizer);
  const rows = rowsOf(tree, (branch, depth) => isSearched || isOpenAtFirst(branch, depth) !== toggled.has(branch.path));
  const setAll = (depth: number) => {
    setOpenFrom(depth);
    setToggled(new Set());
  };
  return (
    <section className="card" aria-label="Tensors">
      <header>
        <h2 className="grow">Tensors</h2>
        <button type="button" className="button quiet small" onClick={() => setAll(Number.POSITIVE_INFINITY)}>
          Expand all
        </button>
        <button type="button" className="button quiet small" onClick={() => setAll(0)}>
          Collapse all
        </button>
      </header>
      <div className="table-box">
        <table className="table tensors">
          <thead>
            <tr>
              <th>Tensor</th>
              <th>Shape</th>
              <th>Type</th>
              <th className="right">Size</th>
              <th className="right">Norm</th>
              <th className="right">Mean</th>
              <th className="right">Min</th>
              <th className="right">Max</th>
              <th className="right">Zeros</th>
              <th className="right">NaN, Inf</th>
              <th>Histogram</th>
            </tr>
          </thead>
          <tbody>
            {rows.map((row) =>
              "leaf" in row ? (
                <TensorRow
                  key={`tensor ${row.leaf.tensor.name}`}
                  tensor={row.leaf.tensor}
                  label={row.leaf.label}
                  depth={row.depth}
                  isMarked={row.isMarked}
                  found={figures.get(row.leaf.tensor.name)}
                  isExpanded={expanded.has(row.leaf.tensor.name)}
                  toggle={() => setExpanded(flipped(expanded, row.leaf.tensor.name))}
                />
              ) : (
                <BranchRow
                  key={`branch ${row.branch.path}`}
                  branch={row.branch}
                  depth={row.depth}
                  isOpen={row.isOpen}
                  isMarked={row.isMarked}
                  bad={nonFiniteIn(row.branch, figures)}
                  toggle={() => setToggled(flipped(toggled, row.branch.path))}
                />
              ),
            )}
          </tbody>
        </table>
      </div>
    </section>
  );
}

function flipped(set: ReadonlySet<string>, item: string): ReadonlySet<string> {
  const next = new Set(set);
  if (!next.delete(item)) next.add(item);
  return next;
}

interface BranchRowProps {
  branch: Branch;
  depth: number;
  isOpen: boolean;
  isMarked: boolean;
  bad: number;
  toggle: () => void;
}

function BranchRow({ branch, depth, isOpen, isMarked, bad, toggle }: BranchRowProps) {
  return (
    <tr className="branch">
      <th scope="rowgroup">
        <button
          type="button"
          className="tree-name"
          aria-expanded={isOpen}
          style={{ paddingLeft: depth * STEP }}
          onClick={toggle}
        >
          <ChevronRight size={13} className={isOpen ? "turned" : ""} aria-hidden="true" />
          <span className="mono wrap">{branch.label}</span>
          {isMarked && <span className="tag">optimizer</span>}
        </button>
      </th>
      <td colSpan={2} className="dimmer num nowrap">
        {pluralize(branch.count, "tensor")}, {number(branch.elements)} elements
      </td>
      <td className="right num nowrap dim">{bytes(branch.sizeBytes)}</td>
      <td colSpan={5} />
      <td className={`right num${bad > 0 ? " tone-red strong" : ""}`}>{bad > 0 && number(bad)}</td>
      <td />
    </tr>
  );
}

interface TensorRowProps {
  tensor: Tensor;
  label: string;
  depth: number;
  isMarked: boolean;
  found: TensorFigures | undefined;
  isExpanded: boolean;
  toggle: () => void;
}

function TensorRow({ tensor, label, depth, isMarked, found, isExpanded, toggle }: TensorRowProps) {
  const bad = nonFiniteCount(found);
  const note = tensor.note || found?.note;
  const share = found?.zero_share;
  return (
    <>
      <tr>
        <td title={tensor.name}>
          <button
            type="button"
            className="tree-name leaf"
            aria-expanded={isExpanded}
            style={{ paddingLeft: depth * STEP }}
            onClick={toggle}
          >
            <ChevronRight size={13} className={isExpanded ? "turned" : ""} aria-hidden="true" />
            <span className="mono wrap">{label}</span>
            {isMarked && <span className="tag">optimizer</span>}
          </button>
          {note && <p className="tone-amber">{note}</p>}
        </td>
        <td className="mono nowrap">{tensor.shape.join(" × ") || "scalar"}</td>
        <td className="mono dim">{tensor.dtype}</td>
        <td className="right num nowrap dim">{bytes(tensor.size_bytes)}</td>
        <td className="right num">{found && number(found.norm)}</td>
        <td className="right num">{found && number(found.mean)}</td>
        <td className="right num">{found && number(found.minimum)}</td>
        <td className="right num">{found && number(found.maximum)}</td>
        <td className="right num nowrap">{share === null || share === undefined ? "" : percent(share)}</td>
        <td className={`right num${bad > 0 ? " tone-red strong" : " dimmer"}`}>{found && number(bad)}</td>
        <td className="histogram-cell">{found?.histogram && <Histogram histogram={found.histogram} />}</td>
      </tr>
      {isExpanded && (
        <tr className="tensor-more">
          <td colSpan={11}>
            <TensorDetails tensor={tensor} found={found} />
          </td>
        </tr>
      )}
    </>
  );
}

function percent(share: number): string {
  return share === 0 ? "0 %" : `${(share * 100).toFixed(share > 0.1 ? 0 : 1)} %`;
}

function TensorDetails({ tensor, found }: { tensor: Tensor; found: TensorFigures | undefined }) {
  const facts: [string, string][] = [
    ["Name", tensor.name],
    ["Elements", tensor.count.toLocaleString()],
    ...(tensor.file ? [["File", tensor.file] as [string, string]] : []),
    ["NaN", number(found?.nan_count)],
    ["Infinite", number(found?.infinite_count)],
  ];
  return (
    <div className="tensor-details">
      <dl className="facts">
        {facts.map(([name, value]) => (
          <div key={name} className="fact">
            <dt>{name}</dt>
            <dd className="mono">{value}</dd>
          </div>
        ))}
      </dl>
      {found?.histogram ? (
        <figure className="grow">
          <Histogram histogram={found.histogram} isLarge />
          <figcaption className="row dimmer num">
            <span className="grow">{number(found.histogram.low)}</span>
            {number(found.histogram.high)}
          </figcaption>
        </figure>
      ) : (
        <p className="dimmer grow">{found ? "No histogram." : "Statistics are not computed yet."}</p>
      )}
    </div>
  );
}
