import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link, Outlet } from "@tanstack/react-router";
import { ChevronRight, ShieldCheck } from "lucide-react";
import { modelQuery, versionsQuery } from "~/api/models";
import { QueryBoundary, TAB, DetailPage } from "~/components/detailPage";
import { Ago } from "~/components/time";
import { pluralize } from "~/lib/format";
import { ModelActions } from "./actions";

const route = getRouteApi("/shell/models/$project/$model");

const TABS = [
  ["/models/$project/$model", "Versions"],
  ["/models/$project/$model/compare", "Compare"],
  ["/models/$project/$model/history", "History"],
] as const;

export function ModelPage() {
  const params = route.useParams();
  const query = useQuery(modelQuery(params.project, params.model));
  const { data: versions } = useQuery(versionsQuery(params.project, params.model));
  return (
    <QueryBoundary
      query={query}
      kind="model"
      listLink={
        <Link to="/models" className="button">
          All models
        </Link>
      }
    >
      {(model) => (
        <DetailPage
          kind="model"
          title={model.name}
          crumbs={
            <>
              <Link to="/models">Models</Link>
              <ChevronRight size={13} aria-hidden="true" />
              <Link to="/models" search={{ project: model.project }}>
                {model.project}
              </Link>
            </>
          }
          about={
            <>
              {model.is_protected && (
                <span className="state pill tone-violet">
                  <ShieldCheck size={14} aria-hidden="true" /> protected
                </span>
              )}
              <span className="dim">
                {pluralize(model.versions ?? 0, "version")}, changed <Ago at={model.updated_at} />
              </span>
            </>
          }
          actions={<ModelActions model={model} newest={versions?.items.find((version) => version.state === "ready")} />}
          tabs={TABS.map(([to, label]) => (
            <Link key={to} to={to} params={params} {...TAB}>
              {label}
            </Link>
          ))}
        >
          <Outlet />
        </DetailPage>
      )}
    </QueryBoundary>
  );
}
