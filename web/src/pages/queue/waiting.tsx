import { Link } from "@tanstack/react-router";
import { ChevronRight, ListOrdered } from "lucide-react";
import { useState } from "react";
import type { WaitingJob } from "~/api/types";
import { Empty, Sentence } from "~/components/parts";
import { Ago } from "~/components/time";
import { withFullStop, formatFigure, formatGang, number } from "~/lib/format";
import { useNow } from "~/lib/time/now";
import { formatStart } from "~/lib/time/timeScale";
import { hueOf, type Hues } from "./shares";

interface WaitingProps {
  jobs: readonly WaitingJob[];
  waiting: number;
  hues: Hues;
  more: (() => void) | null;
  isLoading: boolean;
}

/** Waiting jobs in the planner's order, with reason and expected start. */
export function WaitingCard({ jobs, waiting, hues, more, isLoading }: WaitingProps) {
  return (
    <section className="card" aria-labelledby="waiting-title">
      <header>
        <h2 className="grow" id="waiting-title">
          Waiting jobs
        </h2>
        <span className="dim num small">
          {jobs.length < waiting
            ? `${jobs.length.toLocaleString()} of ${waiting.toLocaleString()}`
            : waiting.toLocaleString()}
        </span>
      </header>
      {jobs.length === 0 ? (
        <Empty icon={ListOrdered} title="No waiting jobs">
          <p>The next submitted job is first in the queue.</p>
        </Empty>
      ) : (
        <ol className="queue">
          {jobs.map((job, i) => (
            <Row key={job.job_id ?? job.position ?? `never-${i}`} job={job} hues={hues} />
          ))}
        </ol>
      )}
      {more && (
        <div className="queue-more">
          <button type="button" className="button small" onClick={more} disabled={isLoading}>
            {isLoading ? "Loading…" : "Show more"}
          </button>
        </div>
      )}
    </section>
  );
}

function Row({ job, hues }: { job: WaitingJob; hues: Hues }) {
  const [isOpen, setOpen] = useState(false);
  const now = useNow();
  const { about, between } = formatStart(job.start, now);
  const models = job.gpu_models ?? [];
  return (
    <li className="queue-row" value={job.position ?? undefined}>
      <span className="queue-place num" aria-label={job.position ? `Position ${job.position}` : "No position"}>
        {job.position ?? "–"}
      </span>
      <div className="queue-job">
        {job.job_id && job.name ? (
          <Link to="/jobs/$job" params={{ job: job.job_id }} className="job-name cut" title={job.name}>
            {job.name}
          </Link>
        ) : (
          <span className="dim">A job of another project</span>
        )}
        <span className="row tight small dim queue-project">
          <span className={`swatch ${hueOf(hues, job.project)}`} aria-hidden="true" />
          <span className="cut">{job.project ? `${job.project} · ${job.user}` : "other project"}</span>
        </span>
      </div>
      <div className="queue-request small">
        <span className="num nowrap">{formatRequest(job)}</span>
        <span className="dimmer cut" title={models.join(", ")}>
          {models.length > 0 ? models.join(" or ") : formatGang(job.roles ?? {})}
        </span>
      </div>
      <div className="queue-priority small">
        <Priority job={job} />
        <span className="dimmer">
          <Ago at={job.queued_at} />
        </span>
      </div>
      <div className="queue-start small">
        {about ? (
          <span className="num strong nowrap">{about}</span>
        ) : (
          <span className="dimmer">{job.position ? "unknown" : "never"}</span>
        )}
        {between && <span className="dimmer num">{between}</span>}
      </div>
      <div className="queue-reason">
        {job.reason ? (
          <>
            <button type="button" className="reason" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
              <ChevronRight size={13} aria-hidden="true" className={isOpen ? "turned" : ""} />
              <span className="wrap">
                <Sentence text={withFullStop(job.reason.sentence)} />
              </span>
            </button>
            {isOpen && <Numbers job={job} />}
          </>
        ) : (
          <span className="dimmer small">{job.job_id ? "" : "Reason visible to its project."}</span>
        )}
      </div>
    </li>
  );
}

const formatRequest = ({ gpus, cpus }: WaitingJob): string =>
  gpus
    ? `${number(gpus)} GPU${gpus === 1 ? "" : "s"}`
    : cpus
      ? `${number(cpus)} CPU${cpus === 1 ? "" : "s"}`
      : "no GPUs";

const TONES: Record<string, string> = { low: "grey", high: "amber", urgent: "red" };

function Priority({ job }: { job: WaitingJob }) {
  const name = job.priority_class ?? String(job.priority);
  return (
    <span className={`tag num tone-${TONES[name] ?? "grey"}`} title={`Priority ${job.priority}`}>
      {name}
    </span>
  );
}

function Numbers({ job }: { job: WaitingJob }) {
  const numbers = Object.entries(job.reason?.numbers ?? {}).filter(
    ([name, value]) => name !== "reserved_for" && ["number", "string"].includes(typeof value),
  );
  return (
    <div className="row wrapping queue-numbers">
      {numbers.slice(0, 8).map(([name, value]) => (
        <span key={name} className="tag num">
          {formatFigure(name, value)}
        </span>
      ))}
      {job.start?.sentence && (
        <span className="small dim">
          <Sentence text={withFullStop(job.start.sentence)} />
          {(job.start.nodes ?? []).length > 0 && ` Expected nodes: ${(job.start.nodes ?? []).join(", ")}.`}
        </span>
      )}
      {job.job_id && (
        <Link to="/jobs/$job" params={{ job: job.job_id }} className="small">
          Show alternatives
        </Link>
      )}
    </div>
  );
}
