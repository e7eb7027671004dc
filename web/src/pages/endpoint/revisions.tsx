import { useQuery } from "@tanstack/react-query";
import { getRouteApi } from "@tanstack/react-router";
import { History, Undo2 } from "lucide-react";
import { useState } from "react";
import { endpointQuery } from "~/api/endpoints";
import type { DeploymentDetail, EndpointDetail, Revision } from "~/api/types";
import { Empty, TableBox } from "~/components/parts";
import { Ago } from "~/components/time";
import { modelOf } from "./deployRequest";
import { ModelRef } from "~/pages/model/parts";
import { RollBack } from "./rollBack";

const route = getRouteApi("/shell/endpoints/$project/$endpoint");

/** Revisions with their user, reason and outcome. */
export function Revisions() {
  const { project, endpoint: name } = route.useParams();
  const { data: endpoint } = useQuery(endpointQuery(project, name));
  if (endpoint === undefined) return null;
  const deployments = endpoint.deployments ?? [];
  return (
    <div className="page-body">
      {deployments.length === 0 ? (
        <section className="card">
          <Empty icon={History} title="No deployed models" />
        </section>
      ) : (
        deployments.map((deployment) => (
          <RevisionTable key={deployment.id} endpoint={endpoint} deployment={deployment} />
        ))
      )}
    </div>
  );
}

function RevisionTable({ endpoint, deployment }: { endpoint: EndpointDetail; deployment: DeploymentDetail }) {
  const [back, setBack] = useState<number | null>(null);
  const canMove = !["undeploying", "ended"].includes(deployment.state) && !endpoint.deleting_at;
  return (
    <section className="card" aria-label={`Revisions of ${deployment.name}`}>
      <header>
        <h2 className="grow">{deployment.name}</h2>
      </header>
      <TableBox label={`Revisions of ${deployment.name}`}>
        <table className="table">
          <thead>
            <tr>
              <th>Revision</th>
              <th>Model</th>
              <th>Deployed</th>
              <th>Reason and outcome</th>
              <th>
                <span className="only-read">Actions</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {(deployment.revision_list ?? []).map((revision) => (
              <tr key={revision.number}>
                <td className="num nowrap">
                  {revision.number} <RevisionTag deployment={deployment} revision={revision} />
                </td>
                <td>
                  <ModelRef project={endpoint.project} name={modelOf(revision.spec)} />
                </td>
                <td className="dim nowrap">
                  <Ago at={revision.created_at} /> by {revision.user}
                </td>
                <td className="wrap">
                  {revision.reason && <p>{revision.reason}</p>}
                  {revision.verdict && <p className="tone-red">{revision.verdict}</p>}
                  {(revision.failures ?? 0) > 0 && !revision.verdict && deployment.state !== "ready" && (
                    <p className="tone-amber num">{revision.failures} replicas failed in a row</p>
                  )}
                </td>
                <td className="right">
                  {canMove && revision.number !== deployment.wanted && (
                    <button
                      type="button"
                      className="button small"
                      aria-label={`Roll back to revision ${revision.number}`}
                      onClick={() => setBack(revision.number)}
                    >
                      <Undo2 size={14} aria-hidden="true" /> Roll back
                    </button>
                  )}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </TableBox>
      {back !== null && (
        <RollBack endpoint={endpoint} deployment={deployment} revision={back} isOpen close={() => setBack(null)} />
      )}
    </section>
  );
}

function RevisionTag({ deployment, revision }: { deployment: DeploymentDetail; revision: Revision }) {
  if (revision.number === deployment.wanted && revision.number === deployment.stable)
    return <span className="tag tone-green">serving</span>;
  if (revision.number === deployment.wanted) return <span className="tag tone-blue">target</span>;
  if (revision.verdict) return <span className="tag tone-red">failed</span>;
  return revision.stable_at ? <span className="tag">stable</span> : null;
}
