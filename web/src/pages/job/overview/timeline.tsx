import type { Attempt, JobDetail } from "~/api/types";
import { Card } from "~/components/parts";
import { State, toneOf } from "~/components/state";
import { Ago } from "~/components/time";
import { duration } from "~/lib/format";
import { useNow } from "~/lib/time/now";

/** When each attempt waited, started and ran, on one scale. */
export function Timeline({ job, attempts }: { job: JobDetail; attempts: readonly Attempt[] }) {
  const now = useNow();
  const ms = (at: string | null | undefined, other: number) => (at ? Date.parse(at) : other);
  const begin = Date.parse(job.created_at);
  const end = Math.max(ms(job.finished_at, now), begin + 1000);
  const share = (at: number) => `${(Math.min(Math.max(at, begin), end) - begin) / ((end - begin) / 100)}%`;
  const width = (from: number, to: number) =>
    `${(Math.max(0, Math.min(to, end) - Math.max(from, begin)) / (end - begin)) * 100}%`;
  const ordered = [...attempts].sort((a, b) => b.number - a.number);
  return (
    <Card
      title="Attempts"
      aside={<span className="dim num">{duration((end - begin) / 1000)} since submission</span>}
      flush
    >
      <ul className="timeline">
        {ordered.map((attempt) => {
          const created = Date.parse(attempt.created_at);
          const started = ms(attempt.started_at, ms(attempt.ended_at, now));
          const ended = ms(attempt.ended_at, end);
          const outcome = attempt.end
            ? attempt.end.kind === "success"
              ? "succeeded"
              : attempt.end.kind === "cancelled"
                ? "cancelled"
                : "failed"
            : attempt.state;
          return (
            <li key={attempt.id}>
              <div className="row">
                <span className="num attempt-number">{attempt.number}</span>
                <State state={outcome} />
                <span className="grow cut dim" title={attempt.end?.sentence}>
                  {attempt.end?.sentence ?? ""}
                </span>
                <span className="dimmer num nowrap">{duration((ended - started) / 1000)}</span>
                <span className="dim">
                  <Ago at={attempt.created_at} />
                </span>
              </div>
              <div className="lane" aria-hidden="true">
                <span className="bar soft" style={{ left: share(created), width: width(created, started) }} />
                <span
                  className={`bar fill-${toneOf(outcome)}`}
                  style={{ left: share(started), width: width(started, ended) }}
                />
              </div>
              {attempt.resume_from && (
                <p className="dimmer mono cut">
                  {hasRestarted(attempt) && "last restart "}resumed from {attempt.resume_from}
                </p>
              )}
            </li>
          );
        })}
      </ul>
    </Card>
  );
}

/** Within an attempt a single replica, or the next world's processes, may restart from the newest checkpoint. */
function hasRestarted(attempt: Attempt): boolean {
  return (attempt.world ?? 1) > 1 || (attempt.replicas ?? []).some((replica) => replica.generation > 1);
}
