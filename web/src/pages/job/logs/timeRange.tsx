import { Clock } from "lucide-react";
import { useId, useState } from "react";

export interface Range {
  rank: number | undefined;
  since: string | undefined;
  until: string | undefined;
}

interface LogRangeProps extends Range {
  set: (change: Partial<Record<keyof Range, string | number | undefined>>) => void;
}

/** Filters lines by time and rank; the filter is in the address. */
export function LogRange({ rank, since, until, set }: LogRangeProps) {
  const [isOpen, setOpen] = useState(false);
  const summary = [rank === undefined ? "" : `rank ${rank}`, span(since, until)].filter(Boolean).join(" · ");
  return (
    <details className="pop" open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary className={`button small${summary ? " on" : ""}`}>
        <Clock size={14} aria-hidden="true" /> {summary || "Time and rank"}
      </summary>
      <form
        className="menu pop-menu pop-left log-range"
        onKeyDown={(event) => event.key === "Escape" && setOpen(false)}
        onSubmit={(event) => {
          event.preventDefault();
          setOpen(false);
        }}
      >
        <TimeField label="From" value={since} set={(value) => set({ since: value })} />
        <TimeField label="To" value={until} set={(value) => set({ until: value })} />
        <label className="log-range-field">
          Rank
          <input
            className="input num"
            type="number"
            min={0}
            max={9_999_999}
            placeholder="all"
            value={rank ?? ""}
            onChange={(event) =>
              set({ rank: event.target.value === "" ? undefined : Math.trunc(Number(event.target.value)) })
            }
          />
        </label>
        <div className="log-range-end">
          <button
            type="button"
            className="button small"
            disabled={!summary}
            onClick={() => set({ rank: undefined, since: undefined, until: undefined })}
          >
            Clear
          </button>
          <button type="submit" className="button small primary">
            Done
          </button>
        </div>
      </form>
    </details>
  );
}

function TimeField({
  label,
  value,
  set,
}: {
  label: string;
  value: string | undefined;
  set: (value: string | undefined) => void;
}) {
  const id = useId();
  return (
    <label className="log-range-field" htmlFor={id}>
      {label}
      <input
        id={id}
        className="input num"
        type="datetime-local"
        step={1}
        max="9999-12-31T23:59:59"
        value={value === undefined ? "" : localInput(value)}
        onChange={(event) => {
          const at = new Date(event.target.value);
          set(Number.isNaN(at.getTime()) ? undefined : at.toISOString());
        }}
      />
    </label>
  );
}

/** A moment as the browser's field for local time wants it. */
function localInput(iso: string): string {
  const at = new Date(iso);
  return new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}

function span(since: string | undefined, until: string | undefined): string {
  const short = (iso: string) => new Date(iso).toLocaleString(undefined, { dateStyle: "short", timeStyle: "medium" });
  if (since && until) return `${short(since)} to ${short(until)}`;
  return since ? `from ${short(since)}` : until ? `until ${short(until)}` : "";
}
