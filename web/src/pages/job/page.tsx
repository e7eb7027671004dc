import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link, Outlet, useNavigate } from "@tanstack/react-router";
import { ChevronRight, Compass, CopyPlus } from "lucide-react";
import { ApiError } from "~/api/client";
import { checkpointsQuery, jobQuery } from "~/api/queries";
import { Bones, Empty, Failure } from "~/components/parts";
import { State } from "~/components/state";
import { Ago, Ran } from "~/components/time";
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
  const { data: job, error, isPending, refetch } = useQuery(jobQuery(id));
  const navigate = useNavigate();

  if (isPending) {
    return (
      <div className="page-body">
        <Bones rows={2} height={26} />
        <Bones rows={8} />
      </div>
    );
  }
  if (job === undefined) {
    const isMissing = error instanceof ApiError && error.status === 404;
    return isMissing ? (
      <Empty icon={Compass} title="There is no such job">
        <p>It was deleted, or it is in a project that you are not a member of.</p>
        <Link to="/jobs" className="button">
          All jobs
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
          <Link to="/jobs">Jobs</Link>
          <ChevronRight size={13} aria-hidden="true" />
          <Link to="/jobs" search={{ project: job.project }}>
            {job.project}
          </Link>
        </nav>
        <div className="page-head">
          <div className="grow row wrapping">
            <h1>{job.name}</h1>
            <State state={job.state} pill />
            <span className="dim">
              by {job.user}, <Ago at={job.created_at} />
            </span>
            {(job.attempt_count ?? 0) > 0 && (
              <span className="dim">
                ran <Ran seconds={job.ran_s ?? 0} since={job.running_since} />
              </span>
            )}
          </div>
          <div className="row wrapping">
            <Link to="/submit" search={{ from: job.id }} className="button">
              <CopyPlus size={15} aria-hidden="true" /> Clone and edit
            </Link>
            <JobActions jobs={[job]} done={(verb) => verb === "delete" && void navigate({ to: "/jobs" })} />
          </div>
        </div>
        <nav aria-label="Of this job" className="tabs">
          {TABS.map(([to, label]) => (
            <Link
              key={to}
              to={to}
              params={{ job: id }}
              className="tab"
              activeOptions={{ exact: true }}
              activeProps={{ className: "active", "aria-current": "page" }}
            >
              {label}
              {label === "Checkpoints" && <CheckpointCount job={id} />}
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

function CheckpointCount({ job }: { job: string }) {
  const { data } = useQuery(checkpointsQuery(job));
  return data?.items.length ? (
    <span className="count num">{data.next_cursor ? `${data.items.length}+` : data.items.length}</span>
  ) : null;
}
