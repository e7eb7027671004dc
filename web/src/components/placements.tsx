import type { Place } from "~/api/types";
import { counted } from "~/lib/format";

const SHOWN = 6;

/** Which replicas go where, a node a tag. */
export function Places({ places }: { places: readonly Place[] }) {
  const byNode = new Map<string, string[]>();
  for (const place of places) {
    const told = `${counted(place.replicas, place.role)}${place.gpu_model ? `, ${place.gpu_model}` : ""}`;
    byNode.set(place.node, [...(byNode.get(place.node) ?? []), told]);
  }
  const nodes = [...byNode];
  return (
    <span className="room-places">
      {nodes.slice(0, SHOWN).map(([node, told]) => (
        <span key={node} className="tag">
          <span className="mono">{node}</span>
          <span className="dim">{told.join("; ")}</span>
        </span>
      ))}
      {nodes.length > SHOWN && <span className="dim">and {counted(nodes.length - SHOWN, "more node")}</span>}
    </span>
  );
}
