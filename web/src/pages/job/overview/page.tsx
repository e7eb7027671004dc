import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import { CircleAlert, CircleCheck, Hourglass } from "lucide-react";
import { useState } from "react";
import { attemptsQuery, fewSeriesQuery, jobQuery } from "~/api/queries";
import type { JobDetail } from "~/api/types";
import { Card, Sentence, Warnings } from "~/components/parts";
import { pluralize, duration, withFullStop, formatFigure, formatGang, localTime, number } from "~/lib/format";
import { useNow } from "~/lib/time/now";
import { newestValues, headlineMetrics } from "~/lib/headlineMetrics";
import { Alternatives } from "./alternatives";
import { Gang } from "./gang";
import { RecentEvents } from "~/pages/job/events";
import { ExplanationCard } from "./explanation";
import { Facts } from "./facts";
import { Timeline } from "./timeline";
import { WhatIfPanel } from "~/pages/whatIf/panel";
import type { Question } from "~/pages/whatIf/question";

const route = getRouteApi("/shell/jobs/$job");

export function Overview() {
  const { job: id } = route.useParams();
  const { data: job } = useQuery(jobQuery(id));
  const { data: attempts } = useQuery(attemptsQuery(id));
  if (job === undefined) return null;
  const all = attempts?.items ?? [];
  return (
    <div className="page-body">
      <Warnings warnings={job.warnings ?? []} />
      <WaitOrEndNote job={job} />
      <WhatIfCard job={job} />
      <Progress job={job} />
      <div className="columns">
        <div className="stack large">
          {job.attempt ? (
            <Gang attempt={job.attempt} now={elasticNow(job)} />
          ) : (
            <Card title="Gang">
              <p className="dim">
                {formatGang(job.roles ?? {}, job.most_replicas)}
                {job.gpu_count ? `, ${pluralize(job.gpu_count, "GPU")}` : ""}: {startRule(job)}
              </p>
            </Card>
          )}
          {all.length > 0 && <Timeline job={job} attempts={all} />}
          <ExplanationCard job={job} />
        </div>
        <div className="stack large">
          <Facts job={job} />
          <RecentEvents job={id} />
        </div>
      </div>
    </div>
  );
}

/** Size of an elastic gang that is below its maximum; empty for other jobs. */
function elasticNow(job: JobDetail): string {
  if (job.state !== "running") return "";
  const present = (role: string) =>
    (job.attempt?.replicas ?? []).filter((replica) => replica.role === role && replica.state === "running").length;
  const lacking = Object.entries(job.most_replicas ?? {}).find(([role, most]) => present(role) < most);
  if (lacking === undefined) return "";
  const [role, most] = lacking;
  const running = present(role).toLocaleString();
  return `${running} of up to ${pluralize(most, role)} running; more join when capacity is idle.`;
}

/** How many replicas start together: `roles` has the minimum of an elastic role, `most_replicas` its maximum. */
function startRule(job: JobDetail): string {
  const elastic = Object.entries(job.most_replicas ?? {}).find(
    ([role, most]) => most > ((job.roles ?? {})[role] ?? most),
  );
  if (elastic === undefined) return "all replicas start together.";
  const [role, most] = elastic;
  const least = pluralize((job.roles ?? {})[role] ?? 1, role);
  return `it starts once ${least} fit, and grows up to ${most.toLocaleString()}.`;
}

/** Why the job waits, or how it ended: the API's own sentence. */
function WaitOrEndNote({ job }: { job: JobDetail }) {
  if (job.wait_reason) {
    const numbers = Object.entries(job.wait_reason.numbers ?? {}).filter(
      ([name, value]) => name !== "reserved_for" && ["number", "string"].includes(typeof value),
    );
    return (
      <div className="note warn">
        <Hourglass size={16} aria-hidden="true" />
        <div className="stack tight grow">
          <div>
            <Sentence text={withFullStop(job.wait_reason.sentence)} />
            {job.queue_position && !job.wait_reason.is_infeasible ? ` Queue position: ${job.queue_position}.` : ""}
          </div>
          {numbers.length > 0 && (
            <div className="row wrapping">
              {numbers.slice(0, 8).map(([name, value]) => (
                <span key={name} className="tag num">
                  {formatFigure(name, value)}
                </span>
              ))}
            </div>
          )}
          <Alternatives job={job} />
        </div>
      </div>
    );
  }
  if (job.exit) {
    const isGood = job.state === "succeeded";
    const role = job.exit.role;
    return (
      <div className={`note ${isGood ? "good" : job.state === "failed" ? "bad" : ""}`}>
        {isGood ? <CircleCheck size={16} aria-hidden="true" /> : <CircleAlert size={16} aria-hidden="true" />}
        <div>
          <Sentence text={job.exit.sentence} />{" "}
          {role && !isGood && (
            <Link to="/jobs/$job/logs" params={{ job: job.id }} search={{ replica: `${role}-${job.exit.index ?? 0}` }}>
              Log of {role}-{job.exit.index ?? 0}
            </Link>
          )}
        </div>
      </div>
    );
  }
  return null;
}

function Progress({ job }: { job: JobDetail }) {
  const progress = job.progress ?? {};
  const [step, steps, epoch] = [progress["step"], progress["steps"], progress["epoch"]];
  const reported = (progress["metrics"] ?? {}) as Record<string, unknown>;
  // Metrics printed, written for TensorBoard or logged by MLflow are not part of the progress.
  const isQuiet = Object.keys(reported).length === 0 && (job.attempt_count ?? 0) > 0;
  const { data: few } = useQuery(fewSeriesQuery(job.id, isQuiet, job.finished_at != null));
  const metrics = isQuiet ? newestValues(few?.items ?? []) : reported;
  const shown = headlineMetrics(metrics);
  const more = Object.keys(metrics).length - shown.length;
  if (step === undefined && epoch === undefined && shown.length === 0) return null;
  const share = typeof step === "number" && typeof steps === "number" && steps > 0 ? Math.min(1, step / steps) : null;
  return (
    <section className="card" aria-label="Progress">
      {share !== null && (
        <div
          className="meter flat"
          role="progressbar"
          aria-label="Progress"
          aria-valuenow={Math.round(share * 100)}
          aria-valuemin={0}
          aria-valuemax={100}
        >
          <div style={{ width: `${share * 100}%` }} />
        </div>
      )}
      <div className="tiles">
        {step !== undefined && (
          <div>
            <div className="dimmer">step</div>
            <div className="value">
              {number(step)}
              {typeof steps === "number" && steps > 0 && <span className="dimmer small"> of {number(steps)}</span>}
            </div>
          </div>
        )}
        {epoch !== undefined && epoch !== null && (
          <div>
            <div className="dimmer">epoch</div>
            <div className="value">{number(epoch)}</div>
          </div>
        )}
        {typeof progress["done_at"] === "string" && job.state === "running" && (
          <Eta progress={progress} doneAt={progress["done_at"]} />
        )}
        {shown.map(([name, value]) => (
          <div key={name}>
            <div className="dimmer cut" title={name}>
              {name}
            </div>
            <div className="value">{number(value)}</div>
          </div>
        ))}
        {more > 0 && (
          <div>
            <div className="dimmer">others</div>
            <Link to="/jobs/$job/metrics" params={{ job: job.id }}>
              {pluralize(more, "more metric")}
            </Link>
          </div>
        )}
      </div>
    </section>
  );
}

/** Remaining time at the recent rate, with bounds. */
function Eta({ progress, doneAt }: { progress: Record<string, unknown>; doneAt: string }) {
  const now = useNow();
  const seconds = (at: unknown) => (typeof at === "string" ? Math.max(0, (Date.parse(at) - now) / 1000) : null);
  const [low, high] = [seconds(progress["done_at_low"]), seconds(progress["done_at_high"])];
  return (
    <div>
      <div className="dimmer">time left</div>
      <div className="value" title={localTime(doneAt)}>
        {duration(Math.round(seconds(doneAt) ?? 0))}
      </div>
      {low !== null && (
        <div className="dimmer num small">
          {high === null
            ? `${duration(Math.round(low))} at least`
            : `${duration(Math.round(low))} to ${duration(Math.round(high))}`}
        </div>
      )}
    </div>
  );
}

/** What-if questions about a waiting job. */
function WhatIfCard({ job }: { job: JobDetail }) {
  const [questions, setQuestions] = useState<readonly Question[]>([]);
  if (job.state !== "queued") return null;
  return (
    <Card title="What if">
      <WhatIfPanel subject={{ job: job.id }} spec={job.spec} questions={questions} set={setQuestions} />
    </Card>
  );
}
