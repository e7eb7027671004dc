import { age, duration, localTime, utcTime } from "~/lib/format";
import { useNow } from "~/lib/time/now";

/** How long ago, with the local time and UTC on hover. */
export function Ago({ at }: { at: string | null | undefined }) {
  const now = useNow();
  if (!at) return <span className="dimmer">–</span>;
  return (
    <time dateTime={at} title={`${localTime(at)}\n${utcTime(at)}`} className="num nowrap">
      {age(at, now)}
    </time>
  );
}

export function LocalTime({ at }: { at: string | null | undefined }) {
  if (!at) return <span className="dimmer">–</span>;
  return (
    <time dateTime={at} title={utcTime(at)} className="num nowrap">
      {localTime(at)}
    </time>
  );
}

/** How long it ran: grows while `since` is set. */
export function RunTime({ seconds, since }: { seconds: number; since: string | null | undefined }) {
  const now = useNow();
  const more = since ? Math.max(0, (now - Date.parse(since)) / 1000) : 0;
  const total = seconds + more;
  return <span className="num nowrap">{total > 0 ? duration(since ? Math.floor(total) : total) : "–"}</span>;
}
