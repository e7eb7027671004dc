import { Link } from "@tanstack/react-router";
import { useState } from "react";
import type { Reservation, RunningJob, WaitingJob } from "~/api/types";
import { Card } from "~/components/parts";
import { number } from "~/lib/format";
import { useNow } from "~/lib/time/now";
import { axisLabels, clock, type Scale, formatStart, timeScale } from "~/lib/time/timeScale";
import { useWidth } from "~/lib/browser/width";
import { hueOf, type Hues } from "./shares";

const FEW = 10; // lanes of a kind before "show all"
const MINUTE = 60_000;

interface TimeLineProps {
  waiting: readonly WaitingJob[];
  running: readonly RunningJob[];
  reservations: readonly Reservation[];
  hues: Hues;
  /** How good the last expected starts were. */
  accuracy?: string | undefined;
}

const ms = (at: string | null | undefined): number => (at ? Date.parse(at) : Number.NaN);

/** The forecast: next starts with their uncertainty, running jobs, and reservations. */
export function TimeLine({ waiting, running, reservations, hues, accuracy }: TimeLineProps) {
  const now = Math.floor(useNow() / MINUTE) * MINUTE;
  const [isAll, setAll] = useState(false);
  const starts = waiting.filter((job) => job.start?.likely_at || job.start?.early_at);
  const next = starts.toSorted((a, b) => (ms(a.start?.likely_at) || Infinity) - (ms(b.start?.likely_at) || Infinity));
  const ending = running.toSorted((a, b) => (endOf(a) || Infinity) - (endOf(b) || Infinity));
  const shown = isAll ? next : next.slice(0, FEW);
  const runningShown = isAll ? ending : ending.slice(0, FEW);
  const scale = timeScale(now, [
    ...shown.flatMap((job) => [ms(job.start?.likely_at), ms(job.start?.late_at)]),
    ...reservations.map((each) => Math.min(ms(each.ends_at), ms(each.begins_at) + 4 * 60 * MINUTE)),
  ]);
  const hidden = next.length - shown.length + ending.length - runningShown.length;
  return (
    <Card
      title="Forecast"
      aside={
        hidden > 0 || isAll ? (
          <button type="button" className="button quiet small" aria-pressed={isAll} onClick={() => setAll(!isAll)}>
            {isAll ? "Show fewer" : `Show ${hidden} more`}
          </button>
        ) : undefined
      }
      flush
    >
      <div className="time-line">
        <Axis scale={scale} now={now} />
        <Lanes title="Next starts" empty="No predictable starts.">
          {shown.map((job) => (
            <StartLane key={job.job_id ?? job.position} job={job} scale={scale} now={now} hues={hues} />
          ))}
        </Lanes>
        <Lanes title="Running" empty="No running jobs.">
          {runningShown.map((job, i) => (
            <RunningLane key={job.job_id ?? i} job={job} scale={scale} now={now} hues={hues} />
          ))}
        </Lanes>
        {reservations.length > 0 && (
          <Lanes title="Reservations" empty="">
            {reservations.map((each) => (
              <ReservationLane key={each.id} reservation={each} scale={scale} now={now} hues={hues} />
            ))}
          </Lanes>
        )}
        {accuracy && <p className="dimmer small lanes-empty">{accuracy}</p>}
      </div>
    </Card>
  );
}

const endOf = (job: RunningJob): number => ms(job.likely_end_at ?? job.ends_at);

function Axis({ scale, now }: { scale: Scale; now: number }) {
  const [track, width] = useWidth<HTMLDivElement>();
  return (
    <div className="time-axis" aria-hidden="true">
      <div className="lane-track" ref={track}>
        {axisLabels(scale, now, width).map(({ at, text }) => (
          <span key={at} className="tick num" style={{ left: `${scale.at(at)}%` }}>
            {text}
          </span>
        ))}
        <span className="tick now" style={{ left: `${scale.at(now)}%` }}>
          now
        </span>
      </div>
    </div>
  );
}

function Lanes({ title, empty, children }: { title: string; empty: string; children: React.ReactNode[] }) {
  return (
    <section aria-label={title}>
      <h3 className="lanes-title">{title}</h3>
      {children.length === 0 ? (
        <p className="dimmer small lanes-empty">{empty}</p>
      ) : (
        <ul className="lanes">{children}</ul>
      )}
    </section>
  );
}

interface LaneProps {
  scale: Scale;
  now: number;
  hues: Hues;
}

function Track({ scale, now, children }: { scale: Scale; now: number; children: React.ReactNode }) {
  return (
    <div className="lane-track" aria-hidden="true">
      {children}
      <span className="now-line" style={{ left: `${scale.at(now)}%` }} />
    </div>
  );
}

const span = (scale: Scale, from: number, to: number) => ({
  left: `${scale.at(from)}%`,
  width: `${Math.max(0.4, scale.at(to) - scale.at(from))}%`,
});

function Name({
  id,
  name,
  hue,
  about,
}: {
  id?: string | null | undefined;
  name?: string | null | undefined;
  hue: string;
  about: string;
}) {
  return (
    <div className="lane-name">
      <span className={`swatch ${hue}`} aria-hidden="true" />
      {id && name ? (
        <Link to="/jobs/$job" params={{ job: id }} className="cut" title={name}>
          {name}
        </Link>
      ) : (
        <span className="cut dim">{name ?? "another project's job"}</span>
      )}
      <span className="dimmer num small nowrap">{about}</span>
    </div>
  );
}

const formatRequest = ({ gpus, cpus }: { gpus?: number; cpus?: number }): string =>
  gpus ? `${number(gpus)} GPU${gpus === 1 ? "" : "s"}` : cpus ? `${number(cpus)} CPU${cpus === 1 ? "" : "s"}` : "";

function StartLane({ job, scale, now, hues }: LaneProps & { job: WaitingJob }) {
  const { about, between } = formatStart(job.start, now);
  const [early, likely, late] = [ms(job.start?.early_at), ms(job.start?.likely_at), ms(job.start?.late_at)];
  const hue = hueOf(hues, job.project);
  return (
    <li title={`${job.name ?? "A job of another project"}: ${about}${between ? `, ${between}` : ""}`}>
      <Name id={job.job_id} name={job.name} hue={hue} about={formatRequest(job)} />
      <Track scale={scale} now={now}>
        <span
          className={`band ${hue} ${Number.isNaN(late) ? "open" : ""}`}
          style={span(scale, Number.isNaN(early) ? likely : early, Number.isNaN(late) ? scale.end : late)}
        />
        {!Number.isNaN(likely) && <span className={`likely ${hue}`} style={{ left: `${scale.at(likely)}%` }} />}
      </Track>
      <div className="lane-when num">
        {about}
        {between && <span className="dimmer lane-between"> {between}</span>}
      </div>
    </li>
  );
}

function RunningLane({ job, scale, now, hues }: LaneProps & { job: RunningJob }) {
  const end = endOf(job);
  const began = ms(job.started_at);
  const until = Number.isNaN(end) ? "end unknown" : `${job.likely_end_at ? "about" : "by"} ${clock(end, now)}`;
  return (
    <li title={`${job.name ?? "A job of another project"}: ${until}`}>
      <Name id={job.job_id} name={job.name} hue={hueOf(hues, job.project)} about={formatRequest(job)} />
      <Track scale={scale} now={now}>
        <span
          className={`run ${hueOf(hues, job.project)} ${Number.isNaN(end) ? "open" : ""}`}
          style={span(scale, Number.isNaN(began) ? now : began, Number.isNaN(end) ? scale.end : Math.max(end, now))}
        />
      </Track>
      <div className="lane-when num">{until}</div>
    </li>
  );
}

function ReservationLane({ reservation, scale, now, hues }: LaneProps & { reservation: Reservation }) {
  const [from, to] = [ms(reservation.begins_at), ms(reservation.ends_at)];
  const nodes = reservation.nodes.length === 1 ? reservation.nodes[0] : `${reservation.nodes.length} nodes`;
  const when = `${clock(from, now)} to ${clock(to, now)}`;
  return (
    <li title={`${reservation.name ?? "Another project"}: ${reservation.nodes.join(", ")}, ${when}`}>
      <div className="lane-name">
        <span className={`swatch ${hueOf(hues, reservation.project)}`} aria-hidden="true" />
        <span className="cut">{reservation.name ?? "another project's"}</span>
        <span className="dimmer small nowrap">{nodes}</span>
      </div>
      <Track scale={scale} now={now}>
        <span className={`reserved ${hueOf(hues, reservation.project)}`} style={span(scale, from, to)} />
      </Track>
      <div className="lane-when num">{when}</div>
    </li>
  );
}
