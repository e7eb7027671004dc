import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { useVirtualizer } from "@tanstack/react-virtual";
import { ArrowDown, ArrowUp, GitCompareArrows, Search, Table2, X } from "lucide-react";
import { memo, useEffect, useMemo, useRef, useState } from "react";
import { Skeleton, Empty, Failure } from "~/components/parts";
import { State } from "~/components/state";
import { LocalTime } from "~/components/time";
import { pluralize, duration, number } from "~/lib/format";
import { splitList, toggled } from "~/lib/filters";
import { type TrialRow } from "~/api/trialRows";
import { ABSENT } from "~/components/charts/axis";
import { FilterMenu } from "~/pages/jobs/filterMenu";
import { useStudy } from "./useStudy";

const route = getRouteApi("/shell/studies/$study/trials");
const STATES = ["queued", "starting", "running", "paused", "succeeded", "stopped", "failed", "cancelled"];
const ROW = 36; // px
const MOST = 8; // jobs in one comparison

export interface TrialsSearch {
  trial?: number;
  sort?: string;
  state?: string;
}

/** All trials: sortable, filterable, selectable for a comparison of their jobs. */
export function Trials() {
  const { study, metrics, rows, byNumber, isPending, error, refetch } = useStudy();
  const search: TrialsSearch = route.useSearch();
  const navigate = useNavigate({ from: "/studies/$study/trials" });
  const [text, setText] = useState("");
  const [chosen, setChosen] = useState<ReadonlySet<number>>(new Set());
  const names = useMemo(() => Object.keys(study?.spec.parameters ?? {}), [study?.spec.parameters]);
  const metricNames = metrics.map((metric) => metric.name);
  const columns = useMemo(
    () => [
      ...metricNames.map((name) => ({ key: `m:${name}`, name })),
      ...names.map((name) => ({ key: `p:${name}`, name })),
    ],
    // eslint-disable-next-line react-hooks/exhaustive-deps -- by their names
    [names, metricNames.join("\n")],
  );
  const shown = useMemo(
    () => sorted(filtered(rows, search.state, text), search.sort),
    [rows, search.state, search.sort, text],
  );
  const set = (change: { [name in keyof TrialsSearch]?: TrialsSearch[name] | undefined }) =>
    void navigate({
      search: (before) =>
        Object.fromEntries(Object.entries({ ...before, ...change }).filter(([, value]) => value !== undefined)),
      replace: true,
    });
  const toggle = (of: number) =>
    setChosen((before) => {
      const next = new Set(before);
      if (!next.delete(of)) next.add(of);
      return next;
    });
  const jobs = [...chosen].map((of) => byNumber.get(of)?.job).filter((job) => job !== null && job !== undefined);
  const opened = search.trial === undefined ? undefined : byNumber.get(search.trial);
  if (study === undefined) return null;
  return (
    <div className="trials">
      {error !== null && rows.length === 0 && <Failure error={error} retry={() => void refetch()} />}
      {opened && <TrialDetails row={opened} close={() => set({ trial: undefined })} />}
      {search.trial !== undefined && !opened && !isPending && (
        <p className="note warn">There is no trial {search.trial} in this study.</p>
      )}
      <div className="filters">
        <label className="search filter-search">
          <span className="only-read">Search trials</span>
          <Search size={14} aria-hidden="true" />
          <input
            type="search"
            className="input"
            placeholder="Number, value or reason"
            value={text}
            onChange={(event) => setText(event.target.value)}
          />
        </label>
        <FilterMenu
          label="State"
          items={STATES}
          chosen={splitList(search.state)}
          toggle={(state) => set({ state: toggled(search.state, state) })}
        />
        <span className="dim num grow" role="status">
          {shown.length === rows.length
            ? pluralize(rows.length, "trial")
            : `${shown.length.toLocaleString()} of ${pluralize(rows.length, "trial")}`}
        </span>
        {chosen.size > 0 && (
          <button type="button" className="button quiet small" onClick={() => setChosen(new Set())}>
            Clear selection
          </button>
        )}
        {jobs.length >= 2 && jobs.length <= MOST && (
          <Link to="/compare" search={{ jobs: jobs.join(",") }} className="button">
            <GitCompareArrows size={15} aria-hidden="true" /> Compare {jobs.length}
          </Link>
        )}
        {jobs.length > MOST && <span className="dim small">At most {MOST} can be compared.</span>}
      </div>
      <section className="card trial-card">
        {isPending ? (
          <div className="body">
            <Skeleton rows={8} height={20} />
          </div>
        ) : rows.length === 0 ? (
          <Empty icon={Table2} title="No trials yet">
            <p>
              {study.spec.template
                ? "The first ones begin within seconds."
                : "Trials appear when the ask-and-tell program asks for them."}
            </p>
          </Empty>
        ) : (
          <Grid
            rows={shown}
            columns={columns}
            chosen={chosen}
            toggle={toggle}
            sort={search.sort}
            setSort={(sort) => set({ sort })}
            open={(trial) => set({ trial })}
            opened={search.trial}
          />
        )}
      </section>
    </div>
  );
}

function filtered(rows: readonly TrialRow[], stateList: string | undefined, text: string): readonly TrialRow[] {
  const states = splitList(stateList);
  const needle = text.trim().toLowerCase();
  if (states.length === 0 && needle === "") return rows;
  return rows.filter((row) => {
    if (states.length > 0 && !states.includes(row.state)) return false;
    if (needle === "" || String(row.number) === needle) return true;
    const values = Object.entries(row.parameters).some(([name, value]) =>
      `${name}=${String(value)}`.toLowerCase().includes(needle),
    );
    return values || row.reason.toLowerCase().includes(needle);
  });
}

/** Sorts by a column: `m:` a metric, `p:` a parameter, a leading `-` descending. Missing values are last. */
export function sorted(rows: readonly TrialRow[], sort: string | undefined): readonly TrialRow[] {
  if (sort === undefined) return [...rows].reverse();
  const isDown = sort.startsWith("-");
  const key = isDown ? sort.slice(1) : sort;
  const of = (row: TrialRow): unknown =>
    key === "number"
      ? row.number
      : key === "state"
        ? row.state
        : key === "time"
          ? durationOf(row)
          : key.startsWith("m:")
            ? row.metrics[key.slice(2)]
            : row.parameters[key.slice(2)];
  const order = isDown ? -1 : 1;
  return [...rows].sort((a, b) => {
    const [x, y] = [of(a), of(b)];
    const [noX, noY] = [x === undefined || x === null, y === undefined || y === null];
    if (noX || noY) return noX === noY ? a.number - b.number : noX ? 1 : -1;
    const before = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
    return order * before || a.number - b.number;
  });
}

const durationOf = (row: TrialRow): number | null =>
  row.endedAt === null ? null : (Date.parse(row.endedAt) - Date.parse(row.createdAt)) / 1000;

interface GridProps {
  rows: readonly TrialRow[];
  columns: readonly { key: string; name: string }[];
  chosen: ReadonlySet<number>;
  toggle: (trial: number) => void;
  sort: string | undefined;
  setSort: (sort: string | undefined) => void;
  open: (trial: number) => void;
  opened: number | undefined;
}

function Grid({ rows, columns, chosen, toggle, sort, setSort, open, opened }: GridProps) {
  const box = useRef<HTMLDivElement>(null);
  const view = useVirtualizer({
    count: rows.length,
    getScrollElement: () => box.current,
    estimateSize: () => ROW,
    overscan: 12,
    getItemKey: (i) => rows[i]?.number ?? i,
  });
  // The rows' grid template reads the number of columns from a custom property.
  useEffect(() => box.current?.style.setProperty("--columns", String(columns.length)), [columns.length]);
  const last = useRef<number | undefined>(undefined);
  useEffect(() => {
    if (opened === undefined || opened === last.current) return;
    const at = rows.findIndex((row) => row.number === opened);
    if (at === -1) return;
    last.current = opened;
    view.scrollToIndex(at, { align: "center" });
  }, [opened, rows, view]);
  const header = (key: string, label: string) => {
    const [isOn, isDown] = [sort === key || sort === `-${key}`, sort === `-${key}`];
    return (
      <div key={key} role="columnheader" aria-sort={isOn ? (isDown ? "descending" : "ascending") : "none"}>
        <button
          type="button"
          className={`sort cut${isOn ? " on" : ""}`}
          title={label}
          onClick={() => setSort(!isOn ? key : isDown ? undefined : `-${key}`)}
        >
          <span className="cut">{label}</span>
          {isOn && (isDown ? <ArrowDown size={12} aria-hidden="true" /> : <ArrowUp size={12} aria-hidden="true" />)}
        </button>
      </div>
    );
  };
  return (
    <div
      className="trial-table"
      role="table"
      aria-label="Trials"
      aria-rowcount={rows.length + 1}
      tabIndex={0}
      ref={box}
    >
      <div role="rowgroup" className="grid-head">
        <div role="row" className="trial-row" aria-rowindex={1}>
          <div role="columnheader">
            <span className="only-read">Choose</span>
          </div>
          {header("number", "Trial")}
          {header("state", "State")}
          {columns.map((column) => header(column.key, column.name))}
          {header("time", "Duration")}
          <div role="columnheader">Reason</div>
        </div>
      </div>
      <div role="rowgroup" className="grid-body" style={{ height: view.getTotalSize() }}>
        {view.getVirtualItems().map((item) => {
          const row = rows[item.index];
          return row ? (
            <Row
              key={row.number}
              row={row}
              index={item.index}
              top={item.start}
              columns={columns}
              isChosen={chosen.has(row.number)}
              isOpened={row.number === opened}
              toggle={toggle}
              open={open}
            />
          ) : null;
        })}
      </div>
    </div>
  );
}

interface RowProps {
  row: TrialRow;
  index: number;
  top: number;
  columns: GridProps["columns"];
  isChosen: boolean;
  isOpened: boolean;
  toggle: (trial: number) => void;
  open: (trial: number) => void;
}

const Row = memo(function Row({ row, index, top, columns, isChosen, isOpened, toggle, open }: RowProps) {
  const took = durationOf(row);
  return (
    <div
      role="row"
      aria-rowindex={index + 2}
      className={`trial-row${isChosen || isOpened ? " chosen" : ""}`}
      style={{ transform: `translateY(${top}px)` }}
    >
      <div role="cell" className="c-check">
        {row.job && (
          <input
            type="checkbox"
            className="check"
            aria-label={`Choose trial ${row.number}`}
            checked={isChosen}
            onChange={() => toggle(row.number)}
          />
        )}
      </div>
      <div role="cell" className="num">
        <button
          type="button"
          className="sort strong"
          aria-label={`Open trial ${row.number}`}
          onClick={() => open(row.number)}
        >
          {row.number}
        </button>
      </div>
      <div role="cell">
        <State state={row.state} />
      </div>
      {columns.map(({ key, name }) => {
        const value = key.startsWith("m:") ? row.metrics[name] : row.parameters[name];
        return (
          <div
            key={key}
            role="cell"
            className={`num cut${key.startsWith("m:") ? " strong" : ""}`}
            title={String(value ?? "")}
          >
            {value === undefined || value === null ? <span className="dimmer">{ABSENT}</span> : number(value)}
          </div>
        );
      })}
      <div role="cell" className="num dim cut">
        {took === null ? ABSENT : duration(took)}
      </div>
      <div role="cell" className="dim cut" title={row.reason}>
        {row.job && (
          <Link to="/jobs/$job" params={{ job: row.job }} className="small" aria-label={`job of trial ${row.number}`}>
            job
          </Link>
        )}{" "}
        {row.reason}
      </div>
    </div>
  );
});

/** A trial opened from a chart or the table. */
function TrialDetails({ row, close }: { row: TrialRow; close: () => void }) {
  const box = useRef<HTMLElement>(null);
  // Move the keyboard focus here from the chart or the table.
  useEffect(() => box.current?.focus({ preventScroll: true }), [row.number]);
  return (
    <section className="card" aria-label={`Trial ${row.number}`} tabIndex={-1} ref={box}>
      <header>
        <h2>Trial {row.number}</h2>
        <State state={row.state} pill />
        <span className="grow dim cut">
          <LocalTime at={row.createdAt} />
        </span>
        {row.job && (
          <>
            <Link to="/jobs/$job" params={{ job: row.job }} className="button small">
              Job
            </Link>
            <Link to="/jobs/$job/logs" params={{ job: row.job }} className="button small">
              Logs
            </Link>
          </>
        )}
        <button type="button" className="button quiet icon small" aria-label="Close" onClick={close}>
          <X size={14} aria-hidden="true" />
        </button>
      </header>
      <div className="body stack">
        {row.reason && <p className="wrap">{row.reason}</p>}
        <div className="row wrapping">
          {Object.entries(row.metrics).map(([name, value]) => (
            <span key={name} className="tag num">
              <span className="strong">
                {name}: {number(value)}
              </span>
            </span>
          ))}
          {Object.entries(row.parameters).map(([name, value]) => (
            <span key={name} className="tag num" title={String(value)}>
              {name} = {number(value)}
            </span>
          ))}
        </div>
      </div>
    </section>
  );
}
