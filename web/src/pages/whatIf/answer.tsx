import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { CircleCheck, CircleX, Hourglass, X } from "lucide-react";
import { whatIfQuery, type WhatIfSubject } from "~/api/planner";
import type { Forecast, ForecastOption, JobSpec } from "~/api/types";
import { Skeleton, Failure, Sentence } from "~/components/parts";
import { Placements } from "~/components/placements";
import { ExpectedStartText } from "~/components/expectedStart";
import { duration, withFullStop } from "~/lib/format";
import { useNow } from "~/lib/time/now";
import { infeasibleHeadline } from "~/lib/capacity";
import { UNCHANGED, toChanges, questionText, type Question, soonerBy } from "./question";

interface AnswerProps {
  subject: WhatIfSubject;
  spec: JobSpec;
  question: Question;
  /** Removes the answer; null: not removable. */
  remove: (() => void) | null;
}

/** One question and the planner's answer. */
export function Answer({ subject, spec, question, remove }: AnswerProps) {
  const { data, error, isFetching, refetch } = useQuery(whatIfQuery(subject, toChanges(question, spec)));
  const { data: base } = useQuery(whatIfQuery(subject, toChanges(UNCHANGED, spec)));
  const title = questionText(question);
  return (
    <li className="answer" aria-busy={isFetching}>
      <div className="row top">
        <h3 className="grow">{title}</h3>
        {remove && (
          <button type="button" className="button quiet icon small" aria-label={`Remove: ${title}`} onClick={remove}>
            <X size={14} aria-hidden="true" />
          </button>
        )}
      </div>
      {data !== undefined ? (
        <AnswerDetails found={data} base={remove === null ? undefined : base} />
      ) : error !== null ? (
        <Failure error={error} retry={() => void refetch()} />
      ) : (
        <Skeleton rows={4} />
      )}
    </li>
  );
}

function AnswerDetails({ found, base }: { found: Forecast; base: Forecast | undefined }) {
  const reason = found.wait_reason;
  const victims = found.victims ?? [];
  return (
    <>
      <Outcome found={found} />
      <Difference found={found} base={base} />
      {reason ? (
        <>
          {found.start && !reason.is_infeasible && found.start.code !== "never" && (
            <ExpectedStartText start={found.start} />
          )}
          <p className="dim">
            <Sentence text={withFullStop(reason.sentence)} />
          </p>
        </>
      ) : (
        <Placements placements={found.places ?? []} />
      )}
      {found.cost && <p className="dim">Cost: {found.cost.sentence}</p>}
      {victims.length > 0 && (
        <div>
          <h4>Jobs to preempt</h4>
          <ul className="stack tight">
            {victims.map((victim) => (
              <li key={victim.job_id}>
                <Link to="/jobs/$job" params={{ job: victim.job_id }} className="mono small">
                  {victim.job_id}
                </Link>
                <br />
                <Sentence text={withFullStop(victim.sentence)} />
              </li>
            ))}
          </ul>
        </div>
      )}
      <Options title="Would start now" options={found.options ?? []} />
      <Options title="Would start sooner" options={found.later ?? []} />
    </>
  );
}

function Outcome({ found }: { found: Forecast }) {
  const reason = found.wait_reason;
  if (!reason) {
    return (
      <p className="state tone-green">
        <CircleCheck size={15} aria-hidden="true" /> It would start now
      </p>
    );
  }
  if (reason.is_infeasible) {
    return (
      <p className="state tone-red">
        <CircleX size={15} aria-hidden="true" /> {infeasibleHeadline(reason)}
      </p>
    );
  }
  return (
    <p className="state tone-amber">
      <Hourglass size={15} aria-hidden="true" /> It would wait
      {found.queue_position ? ` at queue position ${found.queue_position.toLocaleString()}` : ""}
    </p>
  );
}

const SAME_S = 60;

function Difference({ found, base }: { found: Forecast; base: Forecast | undefined }) {
  const sooner = soonerBy(base, found, useNow());
  if (sooner === null) return null;
  const text =
    Math.abs(sooner) < SAME_S
      ? "No change of the start time"
      : `Probably ${duration(Math.abs(Math.round(sooner / 60) * 60))} ${sooner > 0 ? "sooner" : "later"}`;
  return <p className="strong num">{text}.</p>;
}

function Options({ title, options }: { title: string; options: readonly ForecastOption[] }) {
  if (options.length === 0) return null;
  return (
    <div>
      <h4>{title}</h4>
      <ul className="stack tight">
        {options.map((option) => (
          <li key={option.sentence}>{option.sentence}</li>
        ))}
      </ul>
    </div>
  );
}
