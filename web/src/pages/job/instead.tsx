import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { CopyPlus, ListOrdered } from "lucide-react";
import { jobForecastQuery } from "~/api/queries";
import type { ExpectedStart as ExpectedStartTold, JobDetail } from "~/api/types";
import { Sentence } from "~/components/parts";
import { ended } from "~/lib/format";
import { useNow } from "~/lib/now";
import { startWords } from "~/lib/timeScale";

const UNPLANNED = new Set(["just_queued", "scheduler_away", "backoff"]);

/** When it is expected to start, and with which changes it would at once or sooner, where the planner knows some. */
export function Instead({ job }: { job: JobDetail }) {
  const isPlanned = job.state === "queued" && !UNPLANNED.has(job.wait_reason?.code ?? "");
  const { data } = useQuery(jobForecastQuery(job.id, isPlanned));
  if (!isPlanned || !data?.wait_reason) return null;
  const options = [...(data.options ?? []), ...(data.later ?? [])];
  return (
    <section className="instead" aria-label="What would start now">
      {data.start && data.start.code !== "never" && <ExpectedStart start={data.start} />}
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
        <p key={victim.job_id}>{ended(victim.sentence)}</p>
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

/** The planner's own sentence, and its moments by the clock of who looks. */
function ExpectedStart({ start }: { start: ExpectedStartTold }) {
  const { about, between } = startWords(start, useNow());
  return (
    <p>
      <Sentence text={ended(start.sentence)} />{" "}
      {about && (
        <span className="num">
          Here that is {about}
          {between && `, from ${between}`}.
        </span>
      )}
    </p>
  );
}
