import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import { RadioTower } from "lucide-react";
import { endpointQuery, predictHref } from "~/api/endpoints";
import type { EndpointDetail } from "~/api/types";
import { Card, CopyButton, Empty } from "~/components/parts";
import { LocalTime } from "~/components/time";
import { DeploymentCard } from "./deployment";

const route = getRouteApi("/shell/endpoints/$project/$endpoint");

/** Deployed models, the progress of updates, and replicas with their jobs. */
export function EndpointOverview() {
  const { project, endpoint: name } = route.useParams();
  const { data: endpoint } = useQuery(endpointQuery(project, name));
  if (endpoint === undefined) return null;
  const deployments = endpoint.deployments ?? [];
  return (
    <div className="page-body">
      {endpoint.description && <p className="wrap prose">{endpoint.description}</p>}
      <div className="columns">
        <div className="stack large">
          {deployments.length === 0 ? (
            <section className="card">
              <Empty icon={RadioTower} title="No deployed models">
                <p>Deploy a registered version, or any file or folder of a volume.</p>
              </Empty>
            </section>
          ) : (
            deployments.map((deployment) => (
              <DeploymentCard key={deployment.id} endpoint={endpoint} deployment={deployment} />
            ))
          )}
        </div>
        <EndpointFacts endpoint={endpoint} />
      </div>
    </div>
  );
}

function EndpointFacts({ endpoint }: { endpoint: EndpointDetail }) {
  const address = `${window.location.origin}${predictHref(endpoint.project, endpoint.name)}`;
  return (
    <Card title="Endpoint">
      <dl className="facts">
        <dt>Id</dt>
        <dd className="mono">{endpoint.id}</dd>
        <dt>Project</dt>
        <dd>
          <Link to="/projects/$project" params={{ project: endpoint.project }}>
            {endpoint.project}
          </Link>
        </dd>
        <dt>Created</dt>
        <dd>
          <LocalTime at={endpoint.created_at} />
        </dd>
        <dt>Jobs</dt>
        <dd>
          <Link to="/jobs" search={{ label: `endpoint=${endpoint.name}` }}>
            of replicas
          </Link>
        </dd>
        <dt>Address</dt>
        <dd>
          <span className="mono wrap">{address}</span> <CopyButton text={address} />
        </dd>
      </dl>
    </Card>
  );
}
