import { Link } from "@tanstack/react-router";
import type { Node, QuarantineJob } from "~/api/types";
import { Ago, LocalTime } from "~/components/time";

/** Why a node is quarantined, or suspected but not quarantined. */
export function QuarantineNote({ node }: { node: Node }) {
  const { quarantine, suspicion } = node;
  if (quarantine) {
    return (
      <div className="wrap" role="note" aria-label={`Quarantine of ${node.name}`}>
        <p className="tone-red">{quarantine.why}</p>
        <p className="dim">
          Quarantined <Ago at={quarantine.since} />, until{" "}
          {quarantine.until ? <LocalTime at={quarantine.until} /> : "it is released"}. No new replicas are placed here;
          running ones continue.
        </p>
        <BlamedJobs jobs={quarantine.jobs ?? []} />
      </div>
    );
  }
  if (!suspicion) return null;
  return (
    <div className="wrap" role="note" aria-label={`Suspicion about ${node.name}`}>
      <p className="tone-amber">{suspicion.why}</p>
      <p className="dim">Not quarantined, since {suspicion.why_not}.</p>
      <BlamedJobs jobs={suspicion.jobs ?? []} />
    </div>
  );
}

/** The jobs that failed there because of the machine. */
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
