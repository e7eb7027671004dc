import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { CalendarRange, FlaskConical, SlidersHorizontal } from "lucide-react";
import { useState } from "react";
import { queueQuery, reservationsQuery, runningQuery, sharesQuery } from "~/api/planner";
import { meQuery, projectsQuery } from "~/api/queries";
import { Skeleton, Failure, PageHead } from "~/components/parts";
import { Ago } from "~/components/time";
import { pluralize } from "~/lib/format";
import { PolicyDialog } from "./policy";
import { ReservationsDialog } from "./reservations";
import { type Hues, SharesCard } from "./shares";
import { TimeLine } from "./timeline";
import { WaitingCard } from "./waiting";

const route = getRouteApi("/shell/queue");

/** The queue with wait reasons, the shares, and the start forecast. */
export function QueuePage() {
  const { project = "" } = route.useSearch();
  const queue = useInfiniteQuery(queueQuery(project));
  const shares = useQuery(sharesQuery);
  const running = useQuery(runningQuery);
  const reservations = useQuery(reservationsQuery);
  const { data: projects } = useQuery(projectsQuery);
  const { data: me } = useQuery(meQuery);
  const [open, setOpen] = useState<"" | "policy" | "reservations">("");
  const navigate = useNavigate();
  const pages = queue.data?.pages ?? [];
  const jobs = pages.flatMap((page) => page.items);
  const head = pages[0];
  const names = [
    ...new Set([
      ...(shares.data?.projects ?? []).map((share) => share.project ?? ""),
      ...jobs.map((job) => job.project ?? ""),
    ]),
  ];
  const hues: Hues = new Map(
    names
      .filter(Boolean)
      .sort()
      .map((name, i) => [name, i]),
  );
  return (
    <div className="page-body">
      <PageHead title="Queue" about={head && <About waiting={head.waiting} plannedAt={head.planned_at} />}>
        <select
          className="input auto"
          aria-label="Project"
          value={project}
          onChange={(event) =>
            void navigate({ to: "/queue", search: event.target.value ? { project: event.target.value } : {} })
          }
        >
          <option value="">All projects</option>
          {(projects ?? []).map((each) => (
            <option key={each.name}>{each.name}</option>
          ))}
        </select>
        <button type="button" className="button" onClick={() => setOpen("reservations")}>
          <CalendarRange size={15} aria-hidden="true" /> Reservations
        </button>
        {me?.is_admin && (
          <Link to="/simulations" className="button">
            <FlaskConical size={15} aria-hidden="true" /> Simulate
          </Link>
        )}
        <button type="button" className="button" onClick={() => setOpen("policy")}>
          <SlidersHorizontal size={15} aria-hidden="true" /> Policy
        </button>
      </PageHead>
      <Failures reads={[queue, running, shares, reservations]} />
      <div className="queue-top">
        {running.data && queue.data ? (
          <TimeLine
            waiting={jobs}
            running={running.data.items.filter((job) => !project || job.project === project)}
            reservations={(reservations.data?.items ?? []).filter((each) => !project || each.project === project)}
            hues={hues}
            accuracy={head?.accuracy?.sentence}
          />
        ) : (
          (running.isPending || queue.isPending) && <LoadingCard rows={8} />
        )}
        {shares.data ? <SharesCard shares={shares.data} hues={hues} /> : shares.isPending && <LoadingCard rows={5} />}
      </div>
      {queue.isPending ? (
        <LoadingCard rows={8} />
      ) : (
        head && (
          <WaitingCard
            jobs={jobs}
            waiting={project ? jobs.length : head.waiting}
            hues={hues}
            more={queue.hasNextPage ? () => void queue.fetchNextPage() : null}
            isLoading={queue.isFetchingNextPage}
          />
        )
      )}
      <PolicyDialog isOpen={open === "policy"} close={() => setOpen("")} />
      <ReservationsDialog isOpen={open === "reservations"} close={() => setOpen("")} />
    </div>
  );
}

/** Errors of the queries, without duplicates. */
function Failures({ reads }: { reads: readonly { error: Error | null; refetch: () => unknown }[] }) {
  const failed = reads.filter((read) => read.error !== null);
  const distinct = new Map(failed.map((read) => [read.error?.message, read]));
  return [...distinct.values()].map((read) => (
    <Failure
      key={read.error?.message}
      error={read.error}
      retry={() => {
        for (const each of failed) void each.refetch();
      }}
    />
  ));
}

function About({ waiting, plannedAt }: { waiting: number; plannedAt: string | null | undefined }) {
  return (
    <>
      {pluralize(waiting, "job")} waiting
      {plannedAt ? (
        <>
          ; last planned <Ago at={plannedAt} />.
        </>
      ) : (
        "; not planned yet."
      )}{" "}
      <Link to="/projects">Weights and quotas</Link> are set per project.
    </>
  );
}

function LoadingCard({ rows }: { rows: number }) {
  return (
    <section className="card">
      <div className="body">
        <Skeleton rows={rows} height={20} />
      </div>
    </section>
  );
}
