import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import {
  CircleCheck,
  CircleDot,
  CircleHelp,
  CircleSlash,
  Hourglass,
  type LucideIcon,
  OctagonPause,
} from "lucide-react";
import { useId, useState } from "react";
import { explanationQuery } from "~/api/planner";
import type { Explanation, JobDetail } from "~/api/types";
import { Skeleton, Card, Failure, Sentence } from "~/components/parts";
import { Placements } from "~/components/placements";
import { LocalTime } from "~/components/time";
import { pluralize, withFullStop, formatFigure, localTime } from "~/lib/format";
import { toFieldTime, toUtcTime } from "./fieldTime";

const MINUTE_MS = 60_000;
const AGO: readonly [string, number][] = [
  ["1 min ago", MINUTE_MS],
  ["10 min ago", 10 * MINUTE_MS],
  ["1 h ago", 60 * MINUTE_MS],
];

/** Why the job waited at a time: the planner replays its recorded inputs. */
export function ExplanationCard({ job }: { job: JobDetail }) {
  const [text, setText] = useState("");
  const [askedAt, setAskedAt] = useState<string | null>(null);
  const { data, error, isFetching, refetch } = useQuery(explanationQuery(job.id, askedAt));
  const field = useId();
  const askAt = (ms: number) => {
    setText(toFieldTime(ms));
    setAskedAt(new Date(ms).toISOString());
  };
  return (
    <Card title="Why did it wait?">
      <div className="stack">
        <form
          className="row wrapping"
          onSubmit={(event) => {
            event.preventDefault();
            setAskedAt(toUtcTime(text));
          }}
        >
          <label htmlFor={field} className="label">
            Time
          </label>
          <input
            id={field}
            className="input auto num"
            type="datetime-local"
            step={1}
            required
            min={toFieldTime(Date.parse(job.created_at))}
            value={text}
            onChange={(event) => setText(event.target.value)}
          />
          <button type="submit" className="button">
            <CircleHelp size={15} aria-hidden="true" /> Explain
          </button>
          <span className="row wrapping">
            {AGO.filter(([, ago]) => Date.now() - ago > Date.parse(job.created_at)).map(([label, ago]) => (
              <button key={label} type="button" className="button quiet small" onClick={() => askAt(Date.now() - ago)}>
                {label}
              </button>
            ))}
          </span>
        </form>
        <div aria-live="polite" aria-busy={isFetching}>
          {askedAt === null ? (
            <p className="dim">Recent scheduling decisions are kept and can be replayed.</p>
          ) : error !== null ? (
            <Failure error={error} retry={() => void refetch()} />
          ) : data === undefined ? (
            <Skeleton rows={3} />
          ) : (
            <ExplanationText found={data} />
          )}
        </div>
      </div>
    </Card>
  );
}

const VERDICTS: Record<Explanation["verdict"], [LucideIcon, string, string]> = {
  waits: [Hourglass, "amber", "Waiting"],
  starts: [CircleCheck, "green", "Started"],
  stops: [OctagonPause, "red", "Preempted"],
  runs: [CircleDot, "blue", "Running"],
  absent: [CircleSlash, "grey", "Not in the queue"],
};

function ExplanationText({ found }: { found: Explanation }) {
  const [Icon, tone, label] = VERDICTS[found.verdict];
  const numbers = found.wait_reason?.numbers ?? {};
  const position = found.queue_position;
  const shown = Object.entries(numbers).filter(
    ([name, value]) => name !== "reserved_for" && ["number", "string"].includes(typeof value),
  );
  const ahead = ["before", "held_by", "stopping", "shrinking"].flatMap((name) => jobsIn(numbers[name]));
  return (
    <div className="stack tight">
      <div className="row wrapping">
        <span className={`state tone-${tone}`}>
          <Icon size={15} aria-hidden="true" /> {label}
        </span>
        {position != null && <span className="num">{positionText(position)}</span>}
      </div>
      <p>
        <Sentence text={withFullStop(found.sentence)} />
      </p>
      {found.order && (
        <p className="dim">
          <Sentence text={withFullStop(found.order)} />
        </p>
      )}
      {ahead.length > 0 && (
        <p className="row wrapping small">
          <span className="dim">Ahead of it</span>
          {[...new Set(ahead)].map((job) => (
            <Link key={job} to="/jobs/$job" params={{ job }} className="tag mono">
              {job}
            </Link>
          ))}
        </p>
      )}
      {(found.places ?? []).length > 0 && <Placements placements={found.places ?? []} />}
      {shown.length > 0 && (
        <div className="row wrapping">
          {shown.slice(0, 8).map(([name, value]) => (
            <span key={name} className="tag num">
              {formatFigure(name, isMoment(value) ? localTime(value) : value)}
            </span>
          ))}
        </div>
      )}
      <p className="dimmer small num">
        Plan of <LocalTime at={found.at} />: {pluralize(found.waiting ?? 0, "job")} waiting,{" "}
        {(found.running ?? 0).toLocaleString()} running, {pluralize(found.nodes ?? 0, "node")}.
      </p>
      {found.is_same === false && (
        <p className="note warn">
          The original plan, made by another version of the planner, decided differently
          {found.then ? (
            <>
              : <Sentence text={withFullStop(found.then)} />
            </>
          ) : (
            "."
          )}
        </p>
      )}
    </div>
  );
}

const isMoment = (value: unknown): value is string => typeof value === "string" && /^\d{4}-\d\d-\d\dT/.test(value);

const positionText = (position: number): string => `Queue position ${position.toLocaleString()}`;

/** Job ids in a number of a wait reason. */
function jobsIn(value: unknown): string[] {
  const all = Array.isArray(value) ? value : [value];
  return all.filter((each): each is string => typeof each === "string" && each.startsWith("job-"));
}
