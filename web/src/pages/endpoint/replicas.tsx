import { Link } from "@tanstack/react-router";
import type { ServingReplica } from "~/api/types";
import { TableBox } from "~/components/parts";
import { State } from "~/components/state";
import { Ago } from "~/components/time";

/** Those that are up, and the newest of those that have ended, each with its job. */
export function Replicas({ replicas, wanted }: { replicas: readonly ServingReplica[]; wanted: number }) {
  if (replicas.length === 0) return null;
  return (
    <TableBox label="Replicas">
      <table className="table">
        <thead>
          <tr>
            <th>State</th>
            <th>Revision</th>
            <th>Job</th>
            <th>What it says</th>
            <th>Age</th>
          </tr>
        </thead>
        <tbody>
          {replicas.map((replica) => (
            <tr key={replica.id} className={replica.state === "ended" ? "dim" : ""}>
              <td>
                <State state={replica.state} />
              </td>
              <td className="num">
                {replica.revision}
                {replica.revision === wanted && replica.state !== "ended" && <span className="only-read"> (wanted)</span>}
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
