import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { CopyPlus, ListOrdered } from "lucide-react";
import { jobForecastQuery } from "~/api/queries";
import type { JobDetail } from "~/api/types";
import { ExpectedStartText } from "~/components/expectedStart";
import { withFullStop } from "~/lib/format";

const UNPLANNED = new Set(["just_queued", "scheduler_away", "backoff"]);

/** Whether it waits, and the planner looks at it now. */
const isInPlan = (job: JobDetail): boolean => job.state === "queued" && !UNPLANNED.has(job.wait_reason?.code ?? "");

/** When it is expected to start, and with which changes it would at once or sooner, where the planner knows some. */
export function Alternatives({ job }: { job: JobDetail }) {
  const isPlanned = isInPlan(job);
  const { data } = useQuery(jobForecastQuery(job.id, isPlanned));
  if (!isPlanned || !data?.wait_reason) return null;
  const options = [...(data.options ?? []), ...(data.later ?? [])];
  return (
    <section className="instead" aria-label="What would start now">
      {data.start && data.start.code !== "never" && <ExpectedStartText start={data.start} />}
      {options.length === 0 ? (
        <p>Nothing that is close to it would start now either.</p>
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
            <CopyPlus size={13} aria-hidden="true" /> Clone and change it
          </Link>
        )}
        <Link to="/queue" className="button small">
          <ListOrdered size={13} aria-hidden="true" /> The whole queue
        </Link>
      </div>
    </section>
  );
}
