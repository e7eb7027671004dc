import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link, Outlet } from "@tanstack/react-router";
import { ChevronRight, Compass } from "lucide-react";
import { ApiError } from "~/api/client";
import { studyQuery } from "~/api/studies";
import { Bones, Empty, Failure } from "~/components/parts";
import { State } from "~/components/state";
import { Ago } from "~/components/time";
import { Progress } from "~/pages/studies/page";
import { StudyActions } from "./actions";

const route = getRouteApi("/shell/studies/$study");

const TABS = [
  ["/studies/$study", "Overview"],
  ["/studies/$study/parameters", "Parameters"],
  ["/studies/$study/trials", "Trials"],
  ["/studies/$study/curves", "Curves"],
  ["/studies/$study/spec", "Spec"],
] as const;

export function StudyPage() {
  const { study: id } = route.useParams();
  const { data: study, error, isPending, refetch } = useQuery(studyQuery(id));
  if (isPending) {
    return (
      <div className="page-body">
        <Bones rows={2} height={26} />
        <Bones rows={8} />
      </div>
    );
  }
  if (study === undefined) {
    return error instanceof ApiError && error.status === 404 ? (
      <Empty icon={Compass} title="There is no such study">
        <p>It was deleted, or it is in a project that you are not a member of.</p>
        <Link to="/studies" className="button">
          All studies
        </Link>
      </Empty>
    ) : (
      <div className="page-body">
        <Failure error={error} retry={() => void refetch()} />
      </div>
    );
  }
  return (
    <div className="job">
      <header className="job-head">
        <nav aria-label="Where you are" className="crumbs">
          <Link to="/studies">Studies</Link>
          <ChevronRight size={13} aria-hidden="true" />
          <Link to="/studies" search={{ project: study.project }}>
            {study.project}
          </Link>
        </nav>
        <div className="page-head">
          <div className="grow row wrapping">
            <h1>{study.name}</h1>
            <State state={study.state} pill />
            <span className="dim">
              by {study.user}, <Ago at={study.created_at} />
            </span>
            <Progress study={study} />
          </div>
          <div className="row wrapping">
            <StudyActions study={study} />
          </div>
        </div>
        <nav aria-label="Of this study" className="tabs">
          {TABS.map(([to, label]) => (
            <Link
              key={to}
              to={to}
              params={{ study: id }}
              className="tab"
              activeOptions={{ exact: true, includeSearch: false }}
              activeProps={{ className: "active", "aria-current": "page" }}
            >
              {label}
            </Link>
          ))}
        </nav>
      </header>
      <div className="job-tab">
        <Outlet />
      </div>
    </div>
  );
}
