import { useQuery, useQueryClient } from "@tanstack/react-query";
import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { Plus, RadioTower, Rows3 } from "lucide-react";
import { useState } from "react";
import { endpointKeys, readEndpoints } from "~/api/endpoints";
import { projectsQuery } from "~/api/queries";
import type { Endpoint } from "~/api/types";
import { PagedList, useFilteredPages } from "~/components/pagedList";
import { Field, PageHead } from "~/components/parts";
import { State } from "~/components/state";
import { Ago } from "~/components/time";
import { worstState } from "~/pages/endpoint/rollout";
import { ModelRef } from "~/pages/model/parts";
import { api, unwrap } from "~/api/client";
import { FormDialog } from "~/components/forms/dialogs";
import { TextInput } from "~/components/forms/textInput";

const route = getRouteApi("/shell/endpoints");
const LIVE_MS = 3_000;

/** All visible endpoints, newest first. */
export function EndpointsPage() {
  const { data: projects } = useQuery(projectsQuery);
  const [isOpen, setOpen] = useState(false);
  const { query, filters, filter } = useFilteredPages(route, endpointKeys.all, readEndpoints, LIVE_MS);
  const { project } = filters;
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
            onChange={(event) => filter({ project: event.target.value })}
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

interface CreateProps {
  project: string | undefined;
  isOpen: boolean;
  close: () => void;
}

/** Creates an endpoint without deployed models, and opens its page. */
function CreateEndpoint({ project, isOpen, close }: CreateProps) {
  const { data: projects } = useQuery(projectsQuery);
  const client = useQueryClient();
  const navigate = useNavigate();
  const submit = async (data: FormData) => {
    const chosen = String(data.get("project") ?? "default");
    const body = {
      name: String(data.get("name") ?? "").trim(),
      description: String(data.get("description") ?? "").trim(),
    };
    const endpoint = await unwrap(
      api.POST("/api/v1/projects/{project}/endpoints", { params: { path: { project: chosen } }, body }),
    );
    await client.invalidateQueries({ queryKey: endpointKeys.all });
    await navigate({
      to: "/endpoints/$project/$endpoint",
      params: { project: endpoint.project, endpoint: endpoint.name },
    });
  };
  return (
    <FormDialog title="Create an endpoint" isOpen={isOpen} close={close} verb="Create" submit={submit}>
      {(errorOf) => (
        <>
          <TextInput
            name="name"
            label="Name"
            placeholder="digits"
            hint="Letters, digits, dots, underscores and hyphens; unique in the project."
            error={errorOf("name")}
            isRequired
          />
          <Field label="Project" error={errorOf("project")}>
            {(props) => (
              <select {...props} name="project" className="input" defaultValue={project ?? "default"}>
                {(projects ?? []).map((each) => (
                  <option key={each.name}>{each.name}</option>
                ))}
              </select>
            )}
          </Field>
          <TextInput name="description" label="Description" placeholder="optional" error={errorOf("description")} />
        </>
      )}
    </FormDialog>
  );
}
