import { Link } from "@tanstack/react-router";
import { useVirtualizer } from "@tanstack/react-virtual";
import { ArrowDown, ArrowUp } from "lucide-react";
import { memo, useCallback, useEffect, useRef } from "react";
import { isOver } from "~/api/queries";
import type { Job } from "~/api/types";
import { State } from "~/components/state";
import { Ago, RunTime } from "~/components/time";
import { splitList, toggled } from "~/lib/filters";
import { type Filters, isSort, type Sort } from "./filters";
import { withoutExitPrefix, formatGang, number } from "~/lib/format";

const ROW = 44; // px
const LABELS = 1; // shown; the others are counted

interface JobTableProps {
  jobs: Job[];
  chosen: ReadonlyMap<string, Job>;
  toggle: (job: Job) => void;
  toggleAll: () => void;
  setVisible: (visible: { from: number; to: number }) => void;
  filter: (change: Partial<Record<keyof Filters, string | undefined>>) => void;
  filters: Filters;
}

/** A virtual list: only the rows on screen are rendered. */
export function JobTable({ jobs, chosen, toggle, toggleAll, setVisible, filter, filters }: JobTableProps) {
  const box = useRef<HTMLDivElement>(null);
  const rows = useVirtualizer({
    count: jobs.length,
    getScrollElement: () => box.current,
    estimateSize: () => ROW,
    overscan: 12,
    getItemKey: (i) => jobs[i]?.id ?? i,
  });
  const items = rows.getVirtualItems();
  const from = items[0]?.index ?? 0;
  const to = items.at(-1)?.index ?? 0;
  useEffect(() => setVisible({ from, to }), [from, to, setVisible]);
  const labels = useRef(filters.label);
  labels.current = filters.label;
  const onLabel = useCallback(
    (label: string) => {
      if (!splitList(labels.current).includes(label)) filter({ label: toggled(labels.current, label) });
    },
    [filter],
  );

  const isAll = jobs.length > 0 && jobs.every((job) => chosen.has(job.id));
  return (
    <div className="grid-table" role="table" aria-label="Jobs" aria-rowcount={jobs.length + 1} ref={box}>
      <div role="rowgroup" className="grid-head">
        <div role="row" className="grid-row" aria-rowindex={1}>
          <div role="columnheader" className="c-check">
            <input
              type="checkbox"
              className="check"
              aria-label="Choose all listed jobs"
              checked={isAll}
              ref={(input) => {
                if (input !== null) input.indeterminate = chosen.size > 0 && !isAll;
              }}
              onChange={toggleAll}
            />
          </div>
          <Header name="c-name" sort="name" filters={filters} filter={filter}>
            Name
          </Header>
          <Header name="c-state" sort="state" filters={filters} filter={filter}>
            State
          </Header>
          <div role="columnheader" className="c-status">
            Status
          </div>
          <Header name="c-gang" sort="gpus" filters={filters} filter={filter}>
            Gang
          </Header>
          <Header name="c-ran" sort="started" filters={filters} filter={filter}>
            Ran
          </Header>
          <Header name="c-age" sort="newest" filters={filters} filter={filter}>
            Submitted
          </Header>
        </div>
      </div>
      <div role="rowgroup" className="grid-body" style={{ height: rows.getTotalSize() }}>
        {items.map((item) => {
          const job = jobs[item.index];
          return job ? (
            <Row
              key={job.id}
              job={job}
              index={item.index}
              top={item.start}
              isChosen={chosen.has(job.id)}
              toggle={toggle}
              onLabel={onLabel}
            />
          ) : null;
        })}
      </div>
    </div>
  );
}

interface HeaderProps {
  name: string;
  sort: Sort;
  filters: Filters;
  filter: JobTableProps["filter"];
  children: string;
}

/** A column header that sorts the list; the submission time in both directions. */
function Header({ name, sort, filters, filter, children }: HeaderProps) {
  const now = isSort(filters.sort) ? filters.sort : "newest";
  const isOldest = sort === "newest" && now === "oldest";
  const isOn = now === sort || isOldest;
  const isUp = isOldest || sort === "name" || sort === "state";
  const next =
    now === "newest" && sort === "newest" ? "oldest" : sort === "newest" ? undefined : isOn ? undefined : sort;
  return (
    <div role="columnheader" className={name} aria-sort={isOn ? (isUp ? "ascending" : "descending") : "none"}>
      <button
        type="button"
        className={`sort${isOn ? " on" : ""}`}
        title={SORT_TITLES[sort]}
        onClick={() => filter({ sort: next })}
      >
        {children}
        {isOn && (isUp ? <ArrowUp size={12} aria-hidden="true" /> : <ArrowDown size={12} aria-hidden="true" />)}
      </button>
    </div>
  );
}

const SORT_TITLES: Partial<Record<Sort, string>> = {
  name: "Sort by name",
  state: "Sort by state",
  gpus: "Sort by GPUs, most first",
  started: "Sort by start, latest first",
  newest: "Sort by submission",
};

interface RowProps {
  job: Job;
  index: number;
  top: number;
  isChosen: boolean;
  toggle: (job: Job) => void;
  onLabel: (label: string) => void;
}

const Row = memo(function Row({ job, index, top, isChosen, toggle, onLabel }: RowProps) {
  const labels = Object.entries(job.labels ?? {});
  return (
    <div
      role="row"
      aria-rowindex={index + 2}
      className={`grid-row${isChosen ? " chosen" : ""}`}
      style={{ transform: `translateY(${top}px)` }}
    >
      <div role="cell" className="c-check">
        <input
          type="checkbox"
          className="check"
          aria-label={`Choose ${job.name}`}
          checked={isChosen}
          onChange={() => toggle(job)}
        />
      </div>
      <div role="cell" className="c-name">
        <Link to="/jobs/$job" params={{ job: job.id }} className="job-name cut" title={job.name}>
          {job.name}
        </Link>
        <span className="c-labels">
          {labels.slice(0, LABELS).map(([key, value]) => (
            <button
              key={key}
              type="button"
              className="tag cut"
              title={`Only jobs with ${key}=${value}`}
              onClick={() => onLabel(`${key}=${value}`)}
            >
              {value === "" ? key : `${key}=${value}`}
            </button>
          ))}
          {labels.length > LABELS && (
            <span
              className="dimmer small"
              title={labels.map(([key, value]) => (value === "" ? key : `${key}=${value}`)).join("\n")}
            >
              +{labels.length - LABELS}
            </span>
          )}
        </span>
      </div>
      <div role="cell" className="c-state">
        <State state={job.state} pill />
      </div>
      <div role="cell" className="c-status dim">
        <JobStatus job={job} />
      </div>
      <div role="cell" className="c-gang dim" title={formatGang(job.roles ?? {}, job.most_replicas)}>
        <span className="two-lines">{formatGang(job.roles ?? {}, job.most_replicas)}</span>
        {job.gpu_count ? <span className="tag">{job.gpu_count} GPU</span> : null}
      </div>
      <div role="cell" className="c-ran dim">
        <RunTime seconds={job.ran_s ?? 0} since={job.running_since} />
      </div>
      <div role="cell" className="c-age dim">
        <Ago at={job.created_at} />
        <span className="cut dimmer"> {job.user}</span>
      </div>
    </div>
  );
});

/** Why the job waits, its progress, or how it ended: the API's words. */
export function JobStatus({ job }: { job: Job }) {
  const progress = job.progress ?? {};
  const step = progress["step"];
  const steps = progress["steps"];
  const sentence = job.wait_reason?.sentence ?? (job.state === "succeeded" ? undefined : job.exit?.sentence);
  if (sentence !== undefined) {
    return (
      <span className="two-lines" title={sentence}>
        {withoutExitPrefix(sentence).replaceAll("`", "")}
      </span>
    );
  }
  if (typeof step !== "number") return null;
  if (typeof steps !== "number" || steps <= 0 || isOver(job.state))
    return <span className="num">step {number(step)}</span>;
  return (
    <span className="row progress-cell">
      <span className="meter grow" aria-hidden="true">
        <span style={{ width: `${Math.min(1, Math.max(0, step / steps)) * 100}%` }} />
      </span>
      <span className="num nowrap">
        {number(step)} / {number(steps)}
      </span>
    </span>
  );
}
