import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link, Outlet, useNavigate } from "@tanstack/react-router";
import { ChevronRight, CopyPlus } from "lucide-react";
import { checkpointsQuery, jobQuery } from "~/api/queries";
import { State } from "~/components/state";
import { QueryBoundary, TAB, DetailPage } from "~/components/detailPage";
import { Ago, RunTime } from "~/components/time";
import { RegisterButton } from "~/pages/model/register";
import { JobActions } from "~/pages/jobs/actions";

const route = getRouteApi("/shell/jobs/$job");

const TABS = [
  ["/jobs/$job", "Overview"],
  ["/jobs/$job/logs", "Logs"],
  ["/jobs/$job/metrics", "Metrics"],
  ["/jobs/$job/resources", "Resources"],
  ["/jobs/$job/checkpoints", "Checkpoints"],
  ["/jobs/$job/files", "Files"],
  ["/jobs/$job/events", "Events"],
  ["/jobs/$job/spec", "Spec"],
] as const;

export function JobPage() {
  const { job: id } = route.useParams();
  const query = useQuery(jobQuery(id));
  const navigate = useNavigate();

  return (
    <QueryBoundary
      query={query}
      kind="job"
      listLink={
        <Link to="/jobs" className="button">
          All jobs
        </Link>
      }
    >
      {(job) => (
        <DetailPage
          kind="job"
          title={job.name}
          crumbs={
            <>
              <Link to="/jobs">Jobs</Link>
              <ChevronRight size={13} aria-hidden="true" />
              <Link to="/jobs" search={{ project: job.project }}>
                {job.project}
              </Link>
            </>
          }
          about={
            <>
              <State state={job.state} pill />
              <span className="dim">
                by {job.user}, <Ago at={job.created_at} />
              </span>
              {(job.attempt_count ?? 0) > 0 && (
                <span className="dim">
                  ran <RunTime seconds={job.ran_s ?? 0} since={job.running_since} />
                </span>
              )}
            </>
          }
          actions={
            <>
              <RegisterButton job={job} />
              <Link to="/submit" search={{ from: job.id }} className="button">
                <CopyPlus size={15} aria-hidden="true" /> Clone and edit
              </Link>
              <JobActions jobs={[job]} done={(verb) => verb === "delete" && void navigate({ to: "/jobs" })} />
            </>
          }
          tabs={TABS.map(([to, label]) => (
            <Link key={to} to={to} params={{ job: id }} {...TAB}>
              {label}
              {label === "Checkpoints" && <CheckpointCount job={id} />}
            </Link>
          ))}
        >
          <Outlet />
        </DetailPage>
      )}
    </QueryBoundary>
  );
}

function CheckpointCount({ job }: { job: string }) {
  const { data } = useQuery(checkpointsQuery(job));
  return data?.items.length ? (
    <span className="count num">{data.next_cursor ? `${data.items.length}+` : data.items.length}</span>
  ) : null;
}
