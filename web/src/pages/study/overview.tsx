import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { CircleAlert, CircleCheck, Package, TriangleAlert } from "lucide-react";
import { useState } from "react";
import { importanceQuery, isStudyOver, predictionQuery, studyBestQuery } from "~/api/studies";
import type { StudyDetail } from "~/api/types";
import { Skeleton, Card, Failure, Sentence } from "~/components/parts";
import { LocalTime } from "~/components/time";
import { isAutoml } from "./automl";
import { pluralize, duration, withFullStop, number } from "~/lib/format";
import { RegisterDialog } from "~/pages/model/register";
import { Front } from "./front";
import { History } from "./history";
import { FinalTest, Leaderboard } from "./leaderboard";
import { useStudy } from "./useStudy";

/** Progress, results and parameter importance of a study. */
export function StudyOverview() {
  const { id, study, metrics, rows, results, isPending, error, refetch, pick, describe } = useStudy();
  if (study === undefined) return null;
  const [metric] = metrics;
  const isAuto = isAutoml(study.spec.template?.labels);
  return (
    <div className="page-body">
      <WaitOrEndNote study={study} />
      {error !== null && rows.length === 0 && <Failure error={error} retry={() => void refetch()} />}
      <div className="columns">
        <div className="stack large">
          {isAuto && <Leaderboard study={study} results={results} />}
          {isPending ? (
            <Skeleton rows={6} height={30} />
          ) : (
            metric && (
              <History study={study} rows={rows} results={results} metric={metric} pick={pick} describe={describe} />
            )
          )}
          {metrics.length > 1 && <Front metrics={metrics} rows={rows} pick={pick} describe={describe} />}
          <Importance id={id} study={study} results={results} />
        </div>
        <div className="stack large">
          <Best study={study} results={results} />
          <Winner study={study} />
          {isAuto && <FinalTest study={study} results={results} />}
          <Prediction id={id} results={results} study={study} />
          <StudyFacts study={study} />
        </div>
      </div>
    </div>
  );
}

/** Why the study ended, or a warning while it runs. */
function WaitOrEndNote({ study }: { study: StudyDetail }) {
  const reason = study.wait_reason;
  const isKnown = reason && reason.code !== "just_queued" && !(reason.is_infeasible && study.note);
  const wait = isKnown ? waitText(study.waiting ?? 0, reason.sentence) : "";
  const text = [study.reason, study.note, wait]
    .flatMap((parameter) => (parameter ? [withFullStop(parameter)] : []))
    .join(" ");
  if (!text) return null;
  const [tone, Icon] = study.note
    ? (["warn", TriangleAlert] as const)
    : study.state === "failed"
      ? (["bad", CircleAlert] as const)
      : study.state === "succeeded"
        ? (["good", CircleCheck] as const)
        : (["", CircleAlert] as const);
  return (
    <div className={`note ${tone}`}>
      <Icon size={16} aria-hidden="true" />
      <div>
        <Sentence text={text} />
      </div>
    </div>
  );
}

/** "2 trials wait: needs 8 GPUs …" */
function waitText(waiting: number, sentence: string) {
  const verb = waiting === 1 ? "waits" : "wait";
  return `${pluralize(waiting, "trial")} ${verb}: ${sentence.charAt(0).toLowerCase()}${sentence.slice(1)}`;
}

const FRONT_SHOWN = 8; // trials of the front that are listed initially

function Best({ study, results }: { study: StudyDetail; results: number }) {
  const { data, error, refetch } = useQuery(studyBestQuery(study.id, results));
  const [isAll, setAll] = useState(false);
  const [first] = data?.trials ?? [];
  const several = (data?.trials.length ?? 0) > 1;
  return (
    <Card
      title={several ? `Pareto front: ${data?.trials.length} trials` : "Best trial"}
      aside={!several && first?.job && <RegisterBest job={first.job} />}
    >
      {error !== null && <Failure error={error} retry={() => void refetch()} />}
      {first === undefined ? (
        <p className="dim">No results{isStudyOver(study.state) ? "" : " yet"}.</p>
      ) : several ? (
        <div className="stack">
          <ul className="stack tight" aria-label="Trials on the front">
            {data?.trials.slice(0, isAll ? undefined : FRONT_SHOWN).map((trial) => (
              <li key={trial.number} className="row wrapping">
                <TrialAndJob study={study.id} trial={trial.number} job={trial.job} />
                <span className="num dim wrap">
                  {(study.metrics ?? []).map((metric) => `${metric} ${number(trial.result?.[metric])}`).join(", ")}
                </span>
              </li>
            ))}
          </ul>
          {(data?.trials.length ?? 0) > FRONT_SHOWN && (
            <button type="button" className="button small" onClick={() => setAll(!isAll)}>
              {isAll ? `Show the first ${FRONT_SHOWN}` : `Show all ${data?.trials.length}`}
            </button>
          )}
        </div>
      ) : (
        <dl className="facts">
          <dt>Trial</dt>
          <dd className="row wrapping">
            <TrialAndJob study={study.id} trial={first.number} job={first.job} />
          </dd>
          {(study.metrics ?? []).map((metric) => (
            <Fact key={metric} name={metric} value={first.result?.[metric]} isStrong />
          ))}
          {Object.entries(first.parameters).map(([name, value]) => (
            <Fact key={name} name={name} value={value} />
          ))}
        </dl>
      )}
    </Card>
  );
}

/** Registers the best trial's model. */
function RegisterBest({ job }: { job: string }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <>
      <button type="button" className="button small" onClick={() => setOpen(true)}>
        <Package size={14} aria-hidden="true" /> Register as model
      </button>
      <RegisterDialog job={job} isOpen={isOpen} close={() => setOpen(false)} />
    </>
  );
}

/** The registered model of the best trial, if the study has one. */
function Winner({ study }: { study: StudyDetail }) {
  const { winner } = study;
  if (!winner) return null;
  return (
    <Card title="Registered winner">
      <dl className="facts">
        <dt>Trial</dt>
        <dd>
          <TrialAndJob study={study.id} trial={winner.trial} />
        </dd>
        <dt>Version</dt>
        <dd className="row wrapping">
          {winner.model != null && winner.version != null ? (
            <>
              <Link
                to="/models/$project/$model/versions/$version"
                params={{ project: study.project, model: winner.model, version: String(winner.version) }}
              >
                {winner.model}@{winner.version}
              </Link>
              <span className="dim">{winner.version_state}</span>
            </>
          ) : (
            <span className="dim">deleted</span>
          )}
        </dd>
        {winner.job && (
          <>
            <dt>Job</dt>
            <dd className="row wrapping">
              <Link to="/jobs/$job" params={{ job: winner.job }} className="mono">
                {winner.job}
              </Link>
              <span className="dim">{winner.job_state}</span>
            </dd>
          </>
        )}
      </dl>
      {winner.reason && <p className="dim">{winner.reason}</p>}
    </Card>
  );
}

function Fact({ name, value, isStrong = false }: { name: string; value: unknown; isStrong?: boolean }) {
  return (
    <>
      <dt>{name}</dt>
      <dd className={`num${isStrong ? " strong" : ""}`} title={String(value)}>
        {number(value)}
      </dd>
    </>
  );
}

function TrialAndJob({ study, trial, job }: { study: string; trial: number; job?: string | null | undefined }) {
  return (
    <>
      <Link to="/studies/$study/trials" params={{ study }} search={{ trial }}>
        trial {trial}
      </Link>
      {job && (
        <Link to="/jobs/$job" params={{ job }} className="dim small" aria-label={`its job, of trial ${trial}`}>
          its job
        </Link>
      )}
    </>
  );
}

/** Importance of the parameters. */
function Importance({ id, study, results }: { id: string; study: StudyDetail; results: number }) {
  const metrics = study.metrics ?? [];
  const [metric, setMetric] = useState("");
  const { data, error, isPending, refetch } = useQuery(importanceQuery(id, metric || undefined, results));
  return (
    <Card
      title="Parameter importance"
      aside={
        metrics.length > 1 && (
          <select
            className="input auto"
            aria-label="Metric"
            value={metric}
            onChange={(event) => setMetric(event.target.value)}
          >
            <option value="">all metrics</option>
            {metrics.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        )
      }
    >
      {error !== null && !data ? (
        <Failure error={error} retry={() => void refetch()} />
      ) : isPending ? (
        <Skeleton rows={3} />
      ) : data?.reason ? (
        <p className="dim">{data.reason}</p>
      ) : (
        <div className="stack">
          <ul className="weights">
            {(data?.parameters ?? []).map((parameter) => (
              <Weight
                key={parameter.name}
                study={id}
                name={parameter.name}
                part={parameter.importance ?? null}
                trials={parameter.trials}
              />
            ))}
          </ul>
          <p className="dimmer small">
            How much the distribution of the best 10 % of trials differs from that of all trials, per parameter. Unknown
            below ten trials.
          </p>
        </div>
      )}
    </Card>
  );
}

/** A parameter's importance, with a link to its trials sorted by this parameter. */
function Weight({ study, name, part, trials }: { study: string; name: string; part: number | null; trials: number }) {
  return (
    <li>
      <Link to="/studies/$study/trials" params={{ study }} search={{ sort: `p:${name}`, state: "succeeded,stopped" }}>
        <span className="weight-name">{name}</span>
        <span className="meter" aria-hidden="true">
          <span style={{ width: `${100 * (part ?? 0)}%` }} />
        </span>
        <span className="num">
          {part === null ? "unknown" : `${Math.round(100 * part)} %`}
          <span className="dimmer small"> ({pluralize(trials, "trial")})</span>
        </span>
      </Link>
    </li>
  );
}

/** Expected result of more trials. */
function Prediction({ id, study, results }: { id: string; study: StudyDetail; results: number }) {
  const { data, error, refetch } = useQuery(predictionQuery(id, undefined, results));
  const last = data?.points?.at(-1);
  const chance = data?.chance ?? 0;
  return (
    <Card title="Forecast">
      {error !== null && !data ? (
        <Failure error={error} retry={() => void refetch()} />
      ) : data === undefined ? (
        <Skeleton rows={2} />
      ) : last === undefined ? (
        <p className="dim">{data.reason}</p>
      ) : (
        <div className="stack tight">
          <p>
            Expected best {data.metric} after {pluralize(last.more, "more trial")}:{" "}
            <span className="strong num">{number(last.likely)}</span> (80 % interval{" "}
            <span className="num">{number(last.low)}</span> to <span className="num">{number(last.high)}</span>). Chance
            of improvement: {Math.round(100 * chance)} %.
          </p>
          <p className="dimmer small">
            Extrapolated from the newer half of the trials. Of {pluralize(data.checked ?? 0, "past forecast")} of this
            study {data.held} held.{isStudyOver(study.state) ? " Extend the study to run more trials." : ""}
          </p>
        </div>
      )}
    </Card>
  );
}

function StudyFacts({ study }: { study: StudyDetail }) {
  const { spec } = study;
  const { budget, stopping } = spec;
  const limits = [
    budget.trials != null ? pluralize(budget.trials, "trial") : "",
    budget.max_time != null ? duration(budget.max_time) : "",
    budget.gpu_hours != null ? `${number(budget.gpu_hours)} GPU-hours` : "",
    budget.failed_trials != null ? `at most ${pluralize(budget.failed_trials, "failed trial")}` : "",
  ].filter(Boolean);
  return (
    <Card title="Study">
      <dl className="facts">
        <dt>Id</dt>
        <dd className="mono">{study.id}</dd>
        <dt>Created</dt>
        <dd>
          <LocalTime at={study.created_at} />
        </dd>
        {study.finished_at && (
          <>
            <dt>Ended</dt>
            <dd>
              <LocalTime at={study.finished_at} />
            </dd>
          </>
        )}
        {study.cloned_from && (
          <>
            <dt>Cloned from</dt>
            <dd>
              <Link to="/studies/$study" params={{ study: study.cloned_from }} className="mono">
                {study.cloned_from}
              </Link>
            </dd>
          </>
        )}
        <dt>Goal</dt>
        <dd>{spec.metrics.map((metric) => `${metric.goal} ${metric.name}`).join(", ")}</dd>
        <dt>Algorithm</dt>
        <dd>
          {study.algorithm}
          {study.algorithm_reason && <>: {study.algorithm_reason}</>}
        </dd>
        <dt>Budget</dt>
        <dd>
          {limits.join(", ")}, {budget.parallel ?? 1} in parallel
        </dd>
        <dt>Early stopping</dt>
        <dd>{stopping ? stopping.rule : "none"}</dd>
        {(study.gpu_hours ?? 0) > 0 && (
          <>
            <dt>GPU-hours</dt>
            <dd className="num">{number(study.gpu_hours)}</dd>
          </>
        )}
        {(spec.warm_start ?? []).length > 0 && (
          <>
            <dt>Warm start</dt>
            <dd className="row wrapping">
              {(spec.warm_start ?? []).map((other) => (
                <Link key={other} to="/studies/$study" params={{ study: other }} className="mono">
                  {other}
                </Link>
              ))}
            </dd>
          </>
        )}
        <dt>Trials</dt>
        <dd>
          {spec.template ? (
            <Link to="/jobs" search={{ study: study.id }}>
              their jobs
            </Link>
          ) : (
            "an ask-and-tell program"
          )}
        </dd>
      </dl>
    </Card>
  );
}
