import { Link } from "@tanstack/react-router";
import type { Node, QuarantineJob } from "~/api/types";
import { Ago, LocalTime } from "~/components/time";

/** Why a node takes no new work by itself, or would not but for those that are closed already. */
export function QuarantineNote({ node }: { node: Node }) {
  const { quarantine, suspicion } = node;
  if (quarantine) {
    return (
      <div className="wrap" role="note" aria-label={`Why ${node.name} is quarantined`}>
        <p className="tone-red">{quarantine.why}</p>
        <p className="dim">
          Quarantined <Ago at={quarantine.since} />, until{" "}
          {quarantine.until ? <LocalTime at={quarantine.until} /> : "it is released"}. Nothing new is placed here; what
          runs goes on.
        </p>
        <BlamedJobs jobs={quarantine.jobs ?? []} />
      </div>
    );
  }
  if (!suspicion) return null;
  return (
    <div className="wrap" role="note" aria-label={`What ${node.name} is suspected of`}>
      <p className="tone-amber">{suspicion.why}</p>
      <p className="dim">Not quarantined, since {suspicion.why_not}.</p>
      <BlamedJobs jobs={suspicion.jobs ?? []} />
    </div>
  );
}

/** The jobs that ended there for a reason of the machine. */
function BlamedJobs({ jobs }: { jobs: readonly QuarantineJob[] }) {
  return (
    <p className="row wrapping">
      {jobs.map((job, i) =>
        job.job_id ? (
          <Link key={job.job_id} to="/jobs/$job" params={{ job: job.job_id }} className="tag" title={job.error}>
            {job.job}
          </Link>
        ) : (
          <span key={`hidden ${i}`} className="tag" title={job.error}>
            another project's job
          </span>
        ),
      )}
    </p>
  );
}
