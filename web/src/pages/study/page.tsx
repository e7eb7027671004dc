import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link, Outlet } from "@tanstack/react-router";
import { ChevronRight } from "lucide-react";
import { studyQuery } from "~/api/studies";
import { State } from "~/components/state";
import { QueryBoundary, TAB, DetailPage } from "~/components/detailPage";
import { Ago } from "~/components/time";
import { StudyProgress } from "~/pages/studies/page";
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
  const query = useQuery(studyQuery(id));
  return (
    <QueryBoundary
      query={query}
      kind="study"
      listLink={
        <Link to="/studies" className="button">
          All studies
        </Link>
      }
    >
      {(study) => (
        <DetailPage
          kind="study"
          title={study.name}
          crumbs={
            <>
              <Link to="/studies">Studies</Link>
              <ChevronRight size={13} aria-hidden="true" />
              <Link to="/studies" search={{ project: study.project }}>
                {study.project}
              </Link>
            </>
          }
          about={
            <>
              <State state={study.state} pill />
              <span className="dim">
                by {study.user}, <Ago at={study.created_at} />
              </span>
              <StudyProgress study={study} />
            </>
          }
          actions={<StudyActions study={study} />}
          tabs={TABS.map(([to, label]) => (
            <Link key={to} to={to} params={{ study: id }} {...TAB}>
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
