import { useQuery, useQueryClient } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import { History } from "lucide-react";
import { useEffect, useState } from "react";
import { keys } from "~/api/queries";
import { follow } from "~/api/stream";
import type { Event } from "~/api/types";
import { Skeleton, Card, Empty, Failure, Sentence } from "~/components/parts";
import { Ago } from "~/components/time";
import { clockTime, localTime } from "~/lib/format";

const route = getRouteApi("/shell/jobs/$job");
const RECENT = 6;
/* Shown above the latest events, however old: what the platform added to a launcher, and replicas that train alone. */
const NOTICES = ["train.not_connected", "train.launcher"];

/** A job's events, live. Each event also refreshes the job itself. */
function useEvents(job: string) {
  const client = useQueryClient();
  const [error, setError] = useState<Error | null>(null);
  const key = [...keys.job(job), "events"];
  const keyText = JSON.stringify(key);
  const { data } = useQuery<Event[] | null>({ queryKey: key, queryFn: () => null, enabled: false, initialData: null });
  useEffect(() => {
    const cacheKey = JSON.parse(keyText);
    let pending: Event[] = [];
    let frame = 0;
    const flush = () => {
      frame = 0;
      const fresh = pending;
      pending = [];
      client.setQueryData<Event[] | null>(cacheKey, (before) => {
        const known = new Set((before ?? []).map((event) => event.id));
        return [...(before ?? []), ...fresh.filter((event) => !known.has(event.id))].sort((a, b) => a.id - b.id);
      });
      void client.invalidateQueries({ queryKey: keys.job(job), exact: true });
    };
    const soon = () => {
      frame ||= requestAnimationFrame(flush);
    };
    const stop = follow(`/api/v1/jobs/${encodeURIComponent(job)}/events?follow=true`, {
      event: (event: unknown) => {
        pending.push(event as Event);
        soon();
      },
      end: soon,
      failed: setError,
    });
    return () => {
      stop();
      cancelAnimationFrame(frame);
    };
  }, [client, job, keyText]);
  return { events: data, error };
}

export function RecentEvents({ job }: { job: string }) {
  const { events, error } = useEvents(job);
  const recent = [...(events ?? [])].reverse().slice(0, RECENT);
  const notices = NOTICES.flatMap((kind) => (events ?? []).findLast((event) => event.kind === kind) ?? []);
  return (
    <Card
      title="Latest events"
      aside={
        <Link to="/jobs/$job/events" params={{ job }}>
          All {events?.length ?? ""}
        </Link>
      }
    >
      {error !== null ? (
        <Failure error={error} />
      ) : events === null ? (
        <Skeleton rows={RECENT} height={32} />
      ) : (
        <>
          {notices.map((event) => (
            <div key={event.kind} className={`note ${event.kind === "train.not_connected" ? "warn" : ""}`}>
              <span>
                <Sentence text={event.reason ?? ""} />
              </span>
            </div>
          ))}
          <ol className="events">
            {recent.map((event) => (
              <Line key={event.id} event={event} isShort />
            ))}
          </ol>
        </>
      )}
    </Card>
  );
}

export function Events() {
  const { job } = route.useParams();
  const { events, error } = useEvents(job);
  const [text, setText] = useState("");
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const toggle = (family: string) =>
    setChosen((before) => {
      const next = new Set(before);
      if (!next.delete(family)) next.add(family);
      return next;
    });
  const needle = text.toLowerCase();
  const families = Map.groupBy(events ?? [], (event) => familyOf(event.kind));
  const shown = [...(events ?? [])]
    .reverse()
    .filter((event) => chosen.size === 0 || chosen.has(familyOf(event.kind)))
    .filter((event) => `${event.kind} ${event.actor} ${event.reason}`.toLowerCase().includes(needle));
  return (
    <div className="page-body">
      <div className="row wrapping">
        <input
          className="input narrow"
          type="search"
          aria-label="Search events"
          placeholder="Kind, actor or reason"
          value={text}
          onChange={(event) => setText(event.target.value)}
        />
        {families.size > 1 && (
          <div role="group" aria-label="Filter by kind" className="row wrapping">
            {[...families].map(([family, members]) => (
              <button
                key={family}
                type="button"
                className={`button small${chosen.has(family) ? " on" : ""}`}
                aria-pressed={chosen.has(family)}
                onClick={() => toggle(family)}
              >
                {family} <span className="num">{members.length.toLocaleString()}</span>
              </button>
            ))}
          </div>
        )}
      </div>
      {error !== null && <Failure error={error} />}
      <section className="card">
        <div className="body">
          {events === null ? (
            <Skeleton rows={8} height={28} />
          ) : shown.length === 0 ? (
            <Empty icon={History} title={text || chosen.size > 0 ? "No matching events" : "No events yet"} />
          ) : (
            <ol className="events">
              {shown.slice(0, 1000).map((event) => (
                <Line key={event.id} event={event} />
              ))}
            </ol>
          )}
        </div>
      </section>
      {shown.length > 1000 && (
        <p className="dim">The newest 1,000 of {shown.length.toLocaleString()} are shown; search for others.</p>
      )}
    </div>
  );
}

/** Subject of an event: job, attempt, replica, checkpoint or train. */
const familyOf = (kind: string): string => kind.split(".", 1)[0] ?? kind;

function toneOfKind(kind: string): string {
  if (/fail|lost|refused|dropped|expired/.test(kind)) return "red";
  if (/succeeded|done|complete|checkpoint/.test(kind)) return "green";
  if (/cancel|stop|pause/.test(kind)) return "grey";
  return kind.startsWith("train.") ? "violet" : "blue";
}

function Line({ event, isShort = false }: { event: Event; isShort?: boolean }) {
  const data = Object.entries(event.data ?? {});
  return (
    <li className="event">
      <span className={`event-dot fill-${toneOfKind(event.kind)}`} aria-hidden="true" />
      <div className="grow">
        <div className="row wrapping">
          <span className="mono event-kind">{event.kind}</span>
          <span className="dimmer">{event.actor}</span>
          <span className="grow" />
          <span className="dimmer" title={localTime(event.at)}>
            {isShort ? (
              <Ago at={event.at} />
            ) : (
              <>
                <span className="num">{clockTime(event.at)}</span> · <Ago at={event.at} />
              </>
            )}
          </span>
        </div>
        {event.reason && (
          <p className="dim wrap">
            <Sentence text={event.reason} />
          </p>
        )}
        {!isShort && data.length > 0 && (
          <details className="dimmer">
            <summary>Data</summary>
            <pre className="plain">{JSON.stringify(event.data, null, 2)}</pre>
          </details>
        )}
      </div>
    </li>
  );
}
