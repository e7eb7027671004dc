import { useQuery } from "@tanstack/react-query";
import { getRouteApi } from "@tanstack/react-router";
import { ArrowDownToLine, Download, FileText, Search, WrapText } from "lucide-react";
import { useEffect, useMemo, useState } from "react";
import { jobQuery, logSourcesQuery } from "~/api/queries";
import type { LogSource } from "~/api/types";
import { Skeleton, Empty, Failure } from "~/components/parts";
import { bytes } from "~/lib/format";
import { MAX_LINES, type ShownLine } from "./newestLines";
import type { LogSearch } from "~/router";
import { isFiltered, useLogLines } from "./logLines";
import { LogRange } from "./timeRange";
import { LogView } from "./logView";

const route = getRouteApi("/shell/jobs/$job/logs");
const TAIL = 5_000; // lines: people mostly look at the end

export function Logs() {
  const { job } = route.useParams();
  const search = route.useSearch();
  const navigate = route.useNavigate();
  const { data: detail } = useQuery(jobQuery(job));
  const { data: sources } = useQuery(logSourcesQuery(job));
  const [isFollowing, setFollowing] = useState(true);
  const [isWrapped, setWrapped] = useState(false);
  const [role, index] = splitReplica(search.replica);
  const { attempt, q, level, rank, since, until } = search;
  const isSearching = isFiltered({ search: q, level, rank, since, until });
  const [tail, setTail] = useState(TAIL);
  const [anchor, setAnchor] = useState<ShownLine | null>(null);
  const state = useLogLines({ job, attempt, role, index, search: q, level, rank, since, until, tail });
  const isCut = !isSearching && state.lines.length >= tail;
  const showOlder = () => {
    setFollowing(false);
    setAnchor(state.lines[0] ?? null);
    setTail((before) => Math.min(MAX_LINES, before * 4));
  };
  const attempts = useMemo(
    () => [...new Set((sources?.items ?? []).map((source) => source.attempt))].sort((a, b) => b - a),
    [sources],
  );
  const replicas = useMemo(() => [...new Set((sources?.items ?? []).map((source) => source.name))], [sources]);
  const set = (change: Partial<Record<keyof typeof search, string | number | undefined>>) =>
    void navigate({ search: (before) => clean({ ...before, ...change }), replace: true });

  return (
    <div className="logs">
      <div className="log-bar">
        <LogSearchBox value={search.q ?? ""} set={(q) => set({ q: q || undefined })} />
        <select
          className="input auto"
          aria-label="Replica"
          value={search.replica ?? ""}
          onChange={(event) => set({ replica: event.target.value || undefined })}
        >
          <option value="">All replicas</option>
          {search.replica !== undefined && !replicas.includes(search.replica) && <option>{search.replica}</option>}
          {replicas.map((name) => (
            <option key={name}>{name}</option>
          ))}
        </select>
        <select
          className="input auto"
          aria-label="Level"
          value={search.level ?? ""}
          onChange={(event) => set({ level: event.target.value || undefined })}
        >
          <option value="">All levels</option>
          <option value="info">Info and above</option>
          <option value="warning">Warning and above</option>
          <option value="error">Error and above</option>
          <option value="critical">Critical</option>
        </select>
        {attempts.length > 1 && (
          <select
            className="input auto"
            aria-label="Attempt"
            value={search.attempt ?? ""}
            onChange={(event) => set({ attempt: Number(event.target.value) || undefined })}
          >
            <option value="">Newest attempt</option>
            {attempts.map((number) => (
              <option key={number} value={number}>
                Attempt {number}
              </option>
            ))}
          </select>
        )}
        <LogRange rank={rank} since={since} until={until} set={set} />
        <span className="grow" />
        <span className="dimmer num nowrap" role="status">
          {isCut || state.dropped > 0 ? "last " : ""}
          {state.lines.length.toLocaleString()} lines
        </span>
        <button
          type="button"
          className={`button small${isWrapped ? " on" : ""}`}
          aria-pressed={isWrapped}
          onClick={() => setWrapped(!isWrapped)}
        >
          <WrapText size={14} aria-hidden="true" /> Wrap
        </button>
        {!state.isOver && (
          <button
            type="button"
            className={`button small${isFollowing ? " on" : ""}`}
            aria-pressed={isFollowing}
            onClick={() => setFollowing(!isFollowing)}
          >
            <ArrowDownToLine size={14} aria-hidden="true" /> Follow
          </button>
        )}
        <Downloads
          job={job}
          sources={sources?.items ?? []}
          attempt={attempt}
          replica={search.replica}
          lines={state.lines}
        />
      </div>
      {state.error !== null && (
        <div className="log-note">
          <Failure error={state.error} />
        </div>
      )}
      {isCut && (
        <div className="log-cut">
          {tail < MAX_LINES ? (
            <button type="button" className="button quiet small" onClick={showOlder}>
              Show older lines
            </button>
          ) : (
            "For older lines search, set a time range, or download the log."
          )}
        </div>
      )}
      {state.lines.length > 0 ? (
        <LogView
          anchor={anchor}
          lines={state.lines}
          isFollowing={isFollowing}
          setFollowing={setFollowing}
          isWrapped={isWrapped}
          isMany={replicas.length > 1}
          marked={search.q}
        />
      ) : !state.isOpen && state.error === null ? (
        <div className="log-note">
          <Skeleton rows={10} />
        </div>
      ) : (
        state.error === null && (
          <Empty icon={FileText} title={isSearching ? "No matching lines" : "No lines yet"}>
            <p>
              {search.q
                ? "The search is a regular expression (RE2) over the whole log of this attempt."
                : isSearching
                  ? "No line of this attempt matches the filters."
                  : detail && ["queued", "paused"].includes(detail.state)
                    ? "The job has not started. Lines appear here as they are written."
                    : state.isOver
                      ? "The job wrote nothing."
                      : "Lines appear here as they are written."}
            </p>
          </Empty>
        )
      )}
    </div>
  );
}

function splitReplica(name: string | undefined): [string | undefined, number | undefined] {
  const match = name?.match(/^(.+)-(\d+)$/);
  return match ? [match[1], Number(match[2])] : [undefined, undefined];
}

function clean(search: object): LogSearch {
  return Object.fromEntries(Object.entries(search).filter(([, value]) => value !== undefined));
}

function LogSearchBox({ value, set }: { value: string; set: (text: string) => void }) {
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  return (
    <form
      className="search filter-search"
      onSubmit={(event) => {
        event.preventDefault();
        set(text);
      }}
    >
      <Search size={14} aria-hidden="true" />
      <input
        className="input mono"
        type="search"
        aria-label="Search the log by a regular expression"
        placeholder="Regular expression"
        value={text}
        onChange={(event) => {
          setText(event.target.value);
          if (event.target.value === "") set("");
        }}
      />
    </form>
  );
}

interface DownloadsProps {
  job: string;
  sources: readonly LogSource[];
  attempt: number | undefined;
  replica: string | undefined;
  lines: readonly ShownLine[];
}

/** Downloads of the attempt's log files, and of the lines shown. */
function Downloads({ job, sources, attempt, replica, lines }: DownloadsProps) {
  const shown = attempt ?? sources.reduce((newest, source) => Math.max(newest, source.attempt), 0);
  const shownSources = sources.filter(
    (source) => source.attempt === shown && (replica === undefined || source.name === replica),
  );
  if (shownSources.length === 0) return null;
  const href = (source: LogSource) =>
    `/api/v1/jobs/${encodeURIComponent(job)}/logs/${source.name}?attempt=${source.attempt}`;
  return (
    <details className="pop">
      <summary className="button small">
        <Download size={14} aria-hidden="true" /> Download
      </summary>
      <div className="menu pop-menu">
        <button
          type="button"
          className="menu-item"
          disabled={lines.length === 0}
          onClick={() => save(`${job}.log`, lines)}
        >
          <span className="grow">Lines shown here</span>{" "}
          <span className="dimmer num">{lines.length.toLocaleString()}</span>
        </button>
        {shownSources.map((source) => (
          <a key={source.name} className="menu-item" href={href(source)} download={`${source.name}.log`}>
            <span className="grow mono">{source.name}</span>{" "}
            <span className="dimmer num">{bytes(source.size_bytes)}</span>
          </a>
        ))}
      </div>
    </details>
  );
}

/** Saves `lines` as a file, each with its time and replica. */
function save(name: string, lines: readonly ShownLine[]) {
  const texts = lines.map((line) => `${line.at ?? "-"} ${line.role}-${line.index} ${line.text}\n`);
  const url = URL.createObjectURL(new Blob(texts, { type: "text/plain" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
