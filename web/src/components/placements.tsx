import type { Placement } from "~/api/types";
import { pluralize } from "~/lib/format";

const SHOWN = 6;

/** Replicas by node, one tag per node. */
export function Placements({ placements }: { placements: readonly Placement[] }) {
  const byNode = new Map<string, string[]>();
  for (const placement of placements) {
    const model = placement.gpu_model ? `, ${placement.gpu_model}` : "";
    const texts = `${pluralize(placement.replicas, placement.role)}${model}`;
    byNode.set(placement.node, [...(byNode.get(placement.node) ?? []), texts]);
  }
  const nodes = [...byNode];
  return (
    <span className="placements-list">
      {nodes.slice(0, SHOWN).map(([node, texts]) => (
        <span key={node} className="tag">
          <span className="mono">{node}</span>
          <span className="dim">{texts.join("; ")}</span>
        </span>
      ))}
      {nodes.length > SHOWN && <span className="dim">and {pluralize(nodes.length - SHOWN, "more node")}</span>}
    </span>
  );
}
