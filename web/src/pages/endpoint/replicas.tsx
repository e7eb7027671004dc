import { Link } from "@tanstack/react-router";
import type { ServingReplica } from "~/api/types";
import { TableBox } from "~/components/parts";
import { State } from "~/components/state";
import { Ago } from "~/components/time";
import { replicaStatus } from "./rollout";

interface ReplicasProps {
  replicas: readonly ServingReplica[];
  wanted: number;
}

/** Active replicas, and the newest ended ones (collapsed), each with its job. */
export function Replicas({ replicas, wanted }: ReplicasProps) {
  const up = replicas.filter((replica) => replica.state !== "ended");
  const ended = replicas.filter((replica) => replica.state === "ended");
  return (
    <>
      {up.length > 0 && <ReplicaTable label="Replicas" replicas={up} wanted={wanted} />}
      {ended.length > 0 && (
        <details className="body">
          <summary className="dim">Ended replicas, newest {ended.length}</summary>
          <ReplicaTable label="Ended replicas" replicas={ended} wanted={wanted} />
        </details>
      )}
    </>
  );
}

function ReplicaTable({ label, replicas, wanted }: ReplicasProps & { label: string }) {
  return (
    <TableBox label={label}>
      <table className="table">
        <thead>
          <tr>
            <th>State</th>
            <th>Revision</th>
            <th>Job</th>
            <th>Status</th>
            <th>Age</th>
          </tr>
        </thead>
        <tbody>
          {replicas.map((replica) => (
            <tr key={replica.id} className={replica.state === "ended" ? "dim" : ""}>
              <td>
                <State state={replicaStatus(replica)} />
              </td>
              <td className="num">
                {replica.revision}
                {replica.revision === wanted && replica.state !== "ended" && (
                  <span className="only-read"> (target)</span>
                )}
              </td>
              <td>
                <span className="row tight nowrap replica-links">
                  <Link to="/jobs/$job" params={{ job: replica.job }}>
                    job
                  </Link>
                  <Link to="/jobs/$job/logs" params={{ job: replica.job }}>
                    log
                  </Link>
                  <span className="dimmer small">{replica.job_state}</span>
                </span>
              </td>
              <td className="wrap dim">{replica.words}</td>
              <td className="dim">
                <Ago at={replica.created_at} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </TableBox>
  );
}
