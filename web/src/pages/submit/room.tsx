import { useQuery } from "@tanstack/react-query";
import { Server } from "lucide-react";
import { nodesQuery } from "~/api/queries";
import { bytes, counted } from "~/lib/format";
import { asks, free, gpuCount, isOpen, tryPlacing } from "~/lib/room";

/** Where the gang would find its places with what is free now. */
export function Room({ spec }: { spec: object | null }) {
  const { data: nodes } = useQuery(nodesQuery);
  if (nodes === undefined) return null;
  const open = nodes.filter(isOpen);
  const room = open.map(free);
  const cpu = room.reduce((sum, one) => sum + one.cpu, 0) / 1000;
  const memory = room.reduce((sum, one) => sum + one.memory, 0);
  const gpus = room.reduce((sum, one) => sum + gpuCount(one), 0);
  const wanted = spec ? asks(spec) : [];
  const found = spec ? tryPlacing(nodes, wanted) : null;
  const count = wanted.reduce((sum, ask) => sum + ask.replicas, 0);
  return (
    <section className="card submit-room" aria-label="Where it would run now">
      <div className="body row wrapping">
        <Server size={15} aria-hidden="true" className="dimmer" />
        {found === null ? (
          <span className="dim">Where it would run shows up here once the spec is right.</span>
        ) : found.left === 0 ? (
          <span>
            <b className="tone-green">There is room now</b> for {counted(count, "replica")} on{" "}
            {[...found.placed]
              .slice(0, 4)
              .map(([node, members]) => `${node} (${members.length})`)
              .join(", ")}
            {found.placed.size > 4 ? ` and ${found.placed.size - 4} more` : ""}. Jobs in the queue go first.
          </span>
        ) : (
          <span>
            <b className="tone-amber">It would wait:</b> {found.left} of {counted(count, "replica")} find no place now, and a gang
            starts whole.
          </span>
        )}
        <span className="grow" />
        <span className="dimmer num">
          free on {counted(open.length, "node")}: {cpu.toFixed(cpu < 10 ? 1 : 0)} CPU · {bytes(memory)} · {counted(gpus, "GPU")}
        </span>
      </div>
    </section>
  );
}
