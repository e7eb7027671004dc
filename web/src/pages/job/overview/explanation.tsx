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
import { Bones, Card, Failure, Sentence } from "~/components/parts";
import { Places } from "~/components/placements";
import { LocalTime } from "~/components/time";
import { counted, ended, figure, localTime } from "~/lib/format";
import { fieldTime, momentOf } from "./fieldTime";

const MINUTE_MS = 60_000;
const AGO: readonly [string, number][] = [
  ["1 min ago", MINUTE_MS],
  ["10 min ago", 10 * MINUTE_MS],
  ["1 h ago", 60 * MINUTE_MS],
];

/** Why it waited at a time: the planner is run again on what it saw then. */
export function ExplanationCard({ job }: { job: JobDetail }) {
  const [text, setText] = useState("");
  const [asked, setAsked] = useState<string | null>(null);
  const { data, error, isFetching, refetch } = useQuery(explanationQuery(job.id, asked));
  const field = useId();
  const askAt = (ms: number) => {
    setText(fieldTime(ms));
    setAsked(new Date(ms).toISOString());
  };
  return (
    <Card title="Why did it wait?">
      <div className="stack">
        <form
          className="row wrapping"
          onSubmit={(event) => {
            event.preventDefault();
            setAsked(momentOf(text));
          }}
        >
          <label htmlFor={field} className="label">
            At
          </label>
          <input
            id={field}
            className="input auto num"
            type="datetime-local"
            step={1}
            required
            min={fieldTime(Date.parse(job.created_at))}
            value={text}
            onChange={(event) => setText(event.target.value)}
          />
          <button type="submit" className="button">
            <CircleHelp size={15} aria-hidden="true" /> Explain
          </button>
          <span className="row wrapping">
            {AGO.filter(([, ago]) => Date.now() - ago > Date.parse(job.created_at)).map(([words, ago]) => (
              <button key={words} type="button" className="button quiet small" onClick={() => askAt(Date.now() - ago)}>
                {words}
              </button>
            ))}
          </span>
        </form>
        <div aria-live="polite" aria-busy={isFetching}>
          {asked === null ? (
            <p className="dim">
              Of each plan that changed anything what the planner saw is kept for a while, and it is asked again.
            </p>
          ) : error !== null ? (
            <Failure error={error} retry={() => void refetch()} />
          ) : data === undefined ? (
            <Bones rows={3} />
          ) : (
            <Told found={data} />
          )}
        </div>
      </div>
    </Card>
  );
}

const LOOKS: Record<Explanation["verdict"], [LucideIcon, string, string]> = {
  waits: [Hourglass, "amber", "It waited"],
  starts: [CircleCheck, "green", "It was started"],
  stops: [OctagonPause, "red", "It was stopped to make room"],
  runs: [CircleDot, "blue", "It ran"],
  absent: [CircleSlash, "grey", "It was not in the queue"],
};

function Told({ found }: { found: Explanation }) {
  const [Icon, tone, words] = LOOKS[found.verdict];
  const numbers = found.wait_reason?.numbers ?? {};
  const place = found.queue_position;
  const shown = Object.entries(numbers).filter(
    ([name, value]) => name !== "reserved_for" && ["number", "string"].includes(typeof value),
  );
  const ahead = ["before", "held_by", "stopping", "shrinking"].flatMap((name) => jobsIn(numbers[name]));
  return (
    <div className="stack tight">
      <div className="row wrapping">
        <span className={`state tone-${tone}`}>
          <Icon size={15} aria-hidden="true" /> {words}
        </span>
        {place != null && <span className="num">{placeWords(place)}</span>}
      </div>
      <p>
        <Sentence text={ended(found.sentence)} />
      </p>
      {found.order && (
        <p className="dim">
          <Sentence text={ended(found.order)} />
        </p>
      )}
      {ahead.length > 0 && (
        <p className="row wrapping small">
          <span className="dim">What was before it</span>
          {[...new Set(ahead)].map((job) => (
            <Link key={job} to="/jobs/$job" params={{ job }} className="tag mono">
              {job}
            </Link>
          ))}
        </p>
      )}
      {(found.places ?? []).length > 0 && <Places places={found.places ?? []} />}
      {shown.length > 0 && (
        <div className="row wrapping">
          {shown.slice(0, 8).map(([name, value]) => (
            <span key={name} className="tag num">
              {figure(name, isMoment(value) ? localTime(value) : value)}
            </span>
          ))}
        </div>
      )}
      <p className="dimmer small num">
        The plan of <LocalTime at={found.at} />, with {counted(found.waiting ?? 0, "job")} waiting,{" "}
        {(found.running ?? 0).toLocaleString()} running and {counted(found.nodes ?? 0, "node")}.
      </p>
      {found.is_same === false && (
        <p className="note warn">
          The plan that was made then, by another version of the planner, did something else
          {found.then ? (
            <>
              : <Sentence text={ended(found.then)} />
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

const placeWords = (place: number): string =>
  place === 1
    ? "as the next in the queue"
    : `as number ${place.toLocaleString()} in the queue, behind ${counted(place - 1, "other")}`;

/** The ids of jobs in a figure behind a reason. */
function jobsIn(value: unknown): string[] {
  const all = Array.isArray(value) ? value : [value];
  return all.filter((each): each is string => typeof each === "string" && each.startsWith("job-"));
}
