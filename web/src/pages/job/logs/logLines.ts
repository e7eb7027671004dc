import { useEffect, useState } from "react";
import { follow } from "~/api/stream";
import type { LogLine } from "~/api/types";
import { MAX_LINES, MAX_CHARACTERS, newestLines, type ShownLine } from "./newestLines";

/* A job's log lines, live. A job may write tens of thousands per second: they are collected and drawn once per
 * frame, and only the newest stay. A hidden page has no frames, so the collected lines are bounded, too. */

export interface LogState {
  lines: readonly ShownLine[];
  /** How many older lines were dropped. */
  dropped: number;
  isOver: boolean;
  isOpen: boolean;
  error: Error | null;
}

const NONE: LogState = { lines: [], dropped: 0, isOver: false, isOpen: false, error: null };

export interface LogQuery {
  job: string;
  attempt?: number | undefined;
  role?: string | undefined;
  index?: number | undefined;
  search?: string | undefined;
  level?: string | undefined;
  rank?: number | undefined;
  /** ISO 8601. */
  since?: string | undefined;
  until?: string | undefined;
  /** How many existing lines from the end; only without a filter. */
  tail: number;
}

/** Whether the query selects lines by content, level, rank or time. */
export function isFiltered({ search, level, rank, since, until }: Omit<LogQuery, "job" | "tail">): boolean {
  return [search, level, rank, since, until].some((value) => value !== undefined);
}

export function useLogLines({
  job,
  attempt,
  role,
  index,
  search,
  level,
  rank,
  since,
  until,
  tail,
}: LogQuery): LogState {
  const [state, setState] = useState<LogState>(NONE);
  useEffect(() => {
    setState(NONE);
    const query = new URLSearchParams({ follow: "true", batch: "true" });
    if (search) query.set("search", search);
    if (level) query.set("level", level);
    if (rank !== undefined) query.set("rank", String(rank));
    if (since) query.set("since", since);
    if (until) query.set("until", until);
    // Without a filter people look at the end; a filter covers the whole log.
    if (!isFiltered({ search, level, rank, since, until })) query.set("tail_lines", String(tail));
    if (attempt !== undefined) query.set("attempt", String(attempt));
    if (role !== undefined) query.set("role", role);
    if (index !== undefined) query.set("index", String(index));

    const offsets = new Map<string, number>();
    const caughtUp = new Set<string>();
    let received = 0;
    let pending: ShownLine[] = [];
    let pendingCharacters = 0;
    let lost = 0;
    let frame = 0;
    const flush = (change: Partial<LogState> = {}) => {
      frame = 0;
      const fresh = pending;
      const unseen = lost;
      pending = [];
      pendingCharacters = lost = 0;
      setState((before) => {
        const { lines, dropped } =
          fresh.length === 0 ? { lines: before.lines, dropped: 0 } : newestLines(before.lines, fresh);
        return { ...before, lines, dropped: before.dropped + dropped + unseen, isOpen: true, ...change };
      });
    };
    const take = (line: LogLine) => {
      const file = `${line.attempt}/${line.role}-${line.index}`;
      // A reconnected stream repeats known lines. Later a smaller offset means that the file was truncated.
      if (!caughtUp.has(file) && line.offset <= (offsets.get(file) ?? -1)) return;
      caughtUp.add(file);
      offsets.set(file, line.offset);
      pending.push({ ...line, key: received++ });
      pendingCharacters += line.text.length;
    };
    const stop = follow(`/api/v1/jobs/${encodeURIComponent(job)}/logs/stream?${query}`, {
      lines: (data: unknown) => {
        for (const line of data as LogLine[]) take(line);
        if (pending.length > 2 * MAX_LINES || pendingCharacters > 2 * MAX_CHARACTERS) {
          const { lines, dropped } = newestLines([], pending);
          pending = lines;
          pendingCharacters = lines.reduce((sum, line) => sum + line.text.length, 0);
          lost += dropped;
        }
        frame ||= requestAnimationFrame(() => flush());
      },
      opened: () => caughtUp.clear(),
      state: () => flush(),
      end: () => flush({ isOver: true }),
      failed: (error: Error) => flush({ error }),
    });
    return () => {
      stop();
      cancelAnimationFrame(frame);
    };
  }, [job, attempt, role, index, search, level, rank, since, until, tail]);
  return state;
}
