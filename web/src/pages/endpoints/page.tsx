import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { Plus, RadioTower, Rows3 } from "lucide-react";
import { useState } from "react";
import { endpointKeys, readEndpoints } from "~/api/endpoints";
import { projectsQuery } from "~/api/queries";
import type { Endpoint } from "~/api/types";
import { PagedList, usePages } from "~/components/pagedList";
import { PageHead } from "~/components/parts";
import { State } from "~/components/state";
import { Ago } from "~/components/time";
import { worstState } from "~/pages/endpoint/rollout";
import { ModelRef } from "~/pages/model/parts";
import { CreateEndpoint } from "./create";

const route = getRouteApi("/shell/endpoints");
const PAGE = 50;
const LIVE_MS = 3_000;

/** All visible endpoints, newest first. */
export function EndpointsPage() {
  const { project } = route.useSearch();
  const navigate = useNavigate({ from: "/endpoints" });
  const { data: projects } = useQuery(projectsQuery);
  const [isOpen, setOpen] = useState(false);
  const query = usePages(
    [...endpointKeys.all, project ?? ""],
    (cursor, signal) => readEndpoints(project, cursor, PAGE, signal),
    LIVE_MS,
  );
  return (
    <div className="page-body">
      <PageHead title="Endpoints">
        <Link to="/batch-predictions" className="button">
          <Rows3 size={15} aria-hidden="true" /> Batch predictions
        </Link>
        <button type="button" className="button primary" onClick={() => setOpen(true)}>
          <Plus size={15} aria-hidden="true" /> Create an endpoint
        </button>
      </PageHead>
      {((projects?.length ?? 0) > 1 || project) && (
        <div className="filters">
          <select
            className="input auto"
            aria-label="Project"
            value={project ?? ""}
            onChange={(event) =>
              void navigate({ search: event.target.value ? { project: event.target.value } : {}, replace: true })
            }
          >
            <option value="">all projects</option>
            {(projects ?? []).map((each) => (
              <option key={each.name}>{each.name}</option>
            ))}
          </select>
        </div>
      )}
      <PagedList
        query={query}
        label="Endpoints"
        rowClass="endpoint-row"
        columns={["Name", "State", "Models", "Replicas", "Created"]}
        row={(endpoint) => <Row key={endpoint.id} endpoint={endpoint} />}
        empty={{
          icon: RadioTower,
          title: project ? `No endpoints in ${project}` : "No endpoints yet",
          description: "Create an endpoint, deploy a model to it, and send requests.",
        }}
      />
      <CreateEndpoint project={project} isOpen={isOpen} close={() => setOpen(false)} />
    </div>
  );
}

type Counts = { ready: number; replicas: number };
const total = (deployments: readonly Counts[], field: keyof Counts): number =>
  deployments.reduce((sum, deployment) => sum + deployment[field], 0);

function Row({ endpoint }: { endpoint: Endpoint }) {
  const deployments = endpoint.deployments ?? [];
  const state = endpoint.deleting_at ? "deleting" : worstState(deployments.map((deployment) => deployment.state));
  const note = deployments.map((deployment) => deployment.note).find(Boolean);
  return (
    <div role="row" className="grid-row endpoint-row">
      <div role="cell" className="c-name">
        <Link
          to="/endpoints/$project/$endpoint"
          params={{ project: endpoint.project, endpoint: endpoint.name }}
          className="job-name cut"
          title={endpoint.name}
        >
          {endpoint.name}
        </Link>
        <span className="dimmer small cut">{endpoint.project}</span>
      </div>
      <div role="cell" title={note}>
        {deployments.length === 0 && !endpoint.deleting_at ? (
          <span className="dimmer">nothing deployed</span>
        ) : (
          <State state={state} pill />
        )}
      </div>
      <div role="cell" className="row wrapping tight">
        {deployments.slice(0, 3).map((deployment) => (
          <span key={deployment.id} className="row tight cut">
            <ModelRef project={endpoint.project} name={deployment.model} />
            {deployments.length > 1 && <span className="dimmer num nowrap">{deployment.traffic} %</span>}
          </span>
        ))}
        {deployments.length > 3 && <span className="dimmer small">and {deployments.length - 3} more</span>}
      </div>
      <div role="cell" className="num dim nowrap">
        {deployments.length > 0 && `${total(deployments, "ready")} of ${total(deployments, "replicas")} ready`}
      </div>
      <div role="cell" className="c-age dim">
        <Ago at={endpoint.created_at} />
        <span className="cut">{endpoint.user}</span>
      </div>
    </div>
  );
}
