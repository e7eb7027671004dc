import { useEffect, useState } from "react";
import { follow } from "~/api/stream";
import type { LogLine } from "~/api/types";

/* The lines of a job as they come. A loud job writes tens of thousands in a second: they are gathered and drawn once per
 * frame, and only the newest are kept. */

export const KEPT = 50_000;

export interface Lines {
  lines: readonly LogLine[];
  /** How many older ones were let go. */
  dropped: number;
  isOver: boolean;
  isOpen: boolean;
  error: Error | null;
}

const NONE: Lines = { lines: [], dropped: 0, isOver: false, isOpen: false, error: null };

export interface Wanted {
  job: string;
  attempt?: number | undefined;
  role?: string | undefined;
  index?: number | undefined;
  search?: string | undefined;
  level?: string | undefined;
}

export function useLines({ job, attempt, role, index, search, level }: Wanted): Lines {
  const [state, setState] = useState<Lines>(NONE);
  useEffect(() => {
    setState(NONE);
    const query = new URLSearchParams({ follow: "true" });
    // Without a search the end is what people look at; a search goes through all.
    if (search) query.set("search", search);
    if (level) query.set("level", level);
    if (!search && !level) query.set("tail_lines", "5000");
    if (attempt !== undefined) query.set("attempt", String(attempt));
    if (role !== undefined) query.set("role", role);
    if (index !== undefined) query.set("index", String(index));

    const places = new Map<string, number>();
    let pending: LogLine[] = [];
    let frame = 0;
    const flush = (change: Partial<Lines> = {}) => {
      frame = 0;
      const fresh = pending;
      pending = [];
      setState((before) => {
        const all = fresh.length === 0 ? before.lines : [...before.lines, ...fresh];
        const over = Math.max(0, all.length - KEPT);
        return { ...before, lines: over ? all.slice(over) : all, dropped: before.dropped + over, isOpen: true, ...change };
      });
    };
    const stop = follow(`/api/v1/jobs/${encodeURIComponent(job)}/logs/stream?${query}`, {
      line: (data: unknown) => {
        const line = data as LogLine;
        const file = `${line.attempt}/${line.role}-${line.index}`;
        // A stream that began anew tells again what we have.
        if (line.offset <= (places.get(file) ?? -1)) return;
        places.set(file, line.offset);
        pending.push(line);
        frame ||= requestAnimationFrame(() => flush());
      },
      state: () => flush(),
      end: () => flush({ isOver: true }),
      failed: (error: Error) => flush({ error }),
    });
    return () => {
      stop();
      cancelAnimationFrame(frame);
    };
  }, [job, attempt, role, index, search, level]);
  return state;
}
