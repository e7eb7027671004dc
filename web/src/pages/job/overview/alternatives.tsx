import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { CopyPlus, ListOrdered } from "lucide-react";
import { jobForecastQuery } from "~/api/queries";
import type { JobDetail } from "~/api/types";
import { ExpectedStartText } from "~/components/expectedStart";
import { withFullStop } from "~/lib/format";

const UNPLANNED = new Set(["just_queued", "scheduler_away", "backoff"]);

/** Whether the job is queued and part of the planner's current plan. */
const isInPlan = (job: JobDetail): boolean => job.state === "queued" && !UNPLANNED.has(job.wait_reason?.code ?? "");

/** Expected start, and changes with which the job would start now or sooner. */
export function Alternatives({ job }: { job: JobDetail }) {
  const isPlanned = isInPlan(job);
  const { data } = useQuery(jobForecastQuery(job.id, isPlanned));
  if (!isPlanned || !data?.wait_reason) return null;
  const options = [...(data.options ?? []), ...(data.later ?? [])];
  return (
    <section className="alternatives" aria-label="Alternatives">
      {data.start && data.start.code !== "never" && <ExpectedStartText start={data.start} />}
      {options.length === 0 ? (
        <p>No similar configuration could start now.</p>
      ) : (
        <ul className="stack tight">
          {options.map((option) => (
            <li key={option.sentence}>{option.sentence}</li>
          ))}
        </ul>
      )}
      {(data.victims ?? []).map((victim) => (
        <p key={victim.job_id}>{withFullStop(victim.sentence)}</p>
      ))}
      <div className="row wrapping">
        {options.length > 0 && (
          <Link to="/submit" search={{ from: job.id }} className="button small">
            <CopyPlus size={13} aria-hidden="true" /> Clone and change
          </Link>
        )}
        <Link to="/queue" className="button small">
          <ListOrdered size={13} aria-hidden="true" /> Show queue
        </Link>
      </div>
    </section>
  );
}
