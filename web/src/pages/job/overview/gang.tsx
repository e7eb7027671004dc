import { Link } from "@tanstack/react-router";
import { Cpu } from "lucide-react";
import { useState } from "react";
import type { Attempt, Replica } from "~/api/types";
import { Card } from "~/components/parts";
import { State, toneOf } from "~/components/state";
import { Ago } from "~/components/time";
import { pluralize, number } from "~/lib/format";

const SHOWN = 64;

/** The replicas of an attempt by node. `now`: a note about the gang's present size. */
export function Gang({ attempt, now }: { attempt: Attempt; now: string }) {
  const [all, setAll] = useState(false);
  const replicas = attempt.replicas ?? [];
  const nodes = new Map<string, Replica[]>();
  for (const replica of all ? replicas : replicas.slice(0, SHOWN)) {
    nodes.set(replica.node, [...(nodes.get(replica.node) ?? []), replica]);
  }
  return (
    <Card
      title="Gang"
      aside={
        <span className="dim">
          {tally(replicas)} · attempt {attempt.number}
          {(attempt.world ?? 1) > 1 && `, world ${attempt.world}`} on {attempt.executor}
        </span>
      }
      flush
    >
      {(attempt.world ?? 1) > 1 && attempt.world_reason && <p className="gang-note dim">{attempt.world_reason}</p>}
      {now && <p className="gang-note dim">{now}</p>}
      <ul className="gang">
        {[...nodes].map(([node, members]) => (
          <li key={node} className="gang-node">
            <div className="gang-node-name">
              <span className="mono cut" title={node}>
                {node || "not placed"}
              </span>
              <span className="dimmer">{pluralize(members.length, "replica")}</span>
            </div>
            <ul className="gang-members">
              {members.map((replica) => (
                <Member key={`${replica.role}-${replica.index}`} replica={replica} />
              ))}
            </ul>
          </li>
        ))}
      </ul>
      {replicas.length > SHOWN && !all && (
        <div className="gang-note">
          <button type="button" className="button small" onClick={() => setAll(true)}>
            Show all {replicas.length.toLocaleString()} replicas
          </button>
        </div>
      )}
    </Card>
  );
}

/** "3 running, 1 starting", the most frequent state first. */
function tally(replicas: readonly Replica[]): string {
  return [...Map.groupBy(replicas, (replica) => replica.state)]
    .sort(([, a], [, b]) => b.length - a.length)
    .map(([state, members]) => `${members.length.toLocaleString()} ${state}`)
    .join(", ");
}

function Member({ replica }: { replica: Replica }) {
  const name = `${replica.role}-${replica.index}`;
  const step = (replica.progress ?? {})["step"];
  const about = [
    replica.address && `address ${replica.address}`,
    replica.generation > 1 && `started ${replica.generation} times`,
    (replica.gpus ?? []).length > 0 &&
      `${replica.gpu_part ? `${replica.gpu_part} of ` : ""}GPU ${(replica.gpus ?? []).join(", ")}`,
    replica.detail,
    replica.exit?.sentence,
  ].filter(Boolean);
  return (
    <li className={`member edge-${toneOf(replica.state)}`} title={about.join("\n")}>
      <div className="row">
        <Link from="/jobs/$job" to="/jobs/$job/logs" search={{ replica: name }} className="mono member-name">
          {name}
        </Link>
        <span className="grow" />
        <State state={replica.state} />
      </div>
      <div className="row dimmer member-facts">
        {typeof replica.rank === "number" && <span className="num">rank {replica.rank}</span>}
        {(replica.gpus ?? []).length > 0 && (
          <span className="row tight">
            <Cpu size={12} aria-hidden="true" /> {replica.gpu_part ?? (replica.gpus ?? []).length} GPU
          </span>
        )}
        {typeof step === "number" && <span className="num">step {number(step)}</span>}
        {replica.generation > 1 && <span className="num">start {replica.generation}</span>}
        <span className="grow" />
        {replica.state === "running" && replica.heartbeat_at && (
          <span>
            heartbeat <Ago at={replica.heartbeat_at} />
          </span>
        )}
      </div>
      {(replica.exit && replica.state !== "succeeded" ? replica.exit.sentence : replica.detail) && (
        <p className="member-detail dim">
          {replica.exit && replica.state !== "succeeded" ? replica.exit.sentence : replica.detail}
        </p>
      )}
    </li>
  );
}
