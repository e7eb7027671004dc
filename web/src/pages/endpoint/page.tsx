import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link, Outlet } from "@tanstack/react-router";
import { ChevronRight } from "lucide-react";
import { endpointQuery } from "~/api/endpoints";
import { State } from "~/components/state";
import { QueryBoundary, TAB, DetailPage } from "~/components/detailPage";
import { Ago } from "~/components/time";
import { worstState } from "./rollout";
import { EndpointActions } from "./actions";

const route = getRouteApi("/shell/endpoints/$project/$endpoint");

const TABS = [
  ["/endpoints/$project/$endpoint", "Overview"],
  ["/endpoints/$project/$endpoint/try", "Try it"],
  ["/endpoints/$project/$endpoint/revisions", "Revisions"],
] as const;

export function EndpointPage() {
  const params = route.useParams();
  const query = useQuery(endpointQuery(params.project, params.endpoint));
  return (
    <QueryBoundary
      query={query}
      kind="endpoint"
      listLink={
        <Link to="/endpoints" className="button">
          All endpoints
        </Link>
      }
    >
      {(endpoint) => {
        const states = (endpoint.deployments ?? []).map((deployment) => deployment.state);
        return (
          <DetailPage
            kind="endpoint"
            title={endpoint.name}
            crumbs={
              <>
                <Link to="/endpoints">Endpoints</Link>
                <ChevronRight size={13} aria-hidden="true" />
                <Link to="/endpoints" search={{ project: endpoint.project }}>
                  {endpoint.project}
                </Link>
              </>
            }
            about={
              <>
                {(states.length > 0 || endpoint.deleting_at) && (
                  <State state={endpoint.deleting_at ? "deleting" : worstState(states)} pill />
                )}
                <span className="dim">
                  by {endpoint.user}, <Ago at={endpoint.created_at} />
                </span>
              </>
            }
            actions={<EndpointActions endpoint={endpoint} />}
            tabs={TABS.map(([to, label]) => (
              <Link key={to} to={to} params={params} {...TAB}>
                {label}
              </Link>
            ))}
          >
            <Outlet />
          </DetailPage>
        );
      }}
    </QueryBoundary>
  );
}
