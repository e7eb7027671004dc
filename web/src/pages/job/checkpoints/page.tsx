import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import { ChevronRight, Layers } from "lucide-react";
import { type ReactNode, useDeferredValue, useState } from "react";
import { checkpointsQuery, jobQuery, statisticsQuery, tensorsQuery } from "~/api/queries";
import type { Checkpoint } from "~/api/types";
import { Skeleton, Empty, Failure } from "~/components/parts";
import { Ago } from "~/components/time";
import { bytes, number } from "~/lib/format";
import { CheckpointActions } from "./actions";
import { Difference } from "./diff";
import { Tensors } from "./tensors";

const route = getRouteApi("/shell/jobs/$job/checkpoint");

/** The content of a checkpoint, or the difference between two. */
export function CheckpointPage() {
  const { job } = route.useParams();
  const { path = "", other, other_job: otherJob = job } = route.useSearch();
  const { data } = useQuery(checkpointsQuery(job));
  const item = data?.items.find((each) => each.path === path);
  return (
    <div className="page-body">
      <div className="row wrapping">
        <nav aria-label="Checkpoint" className="crumbs grow">
          <Link to="/jobs/$job/checkpoints" params={{ job }}>
            Checkpoints
          </Link>
          <ChevronRight size={13} aria-hidden="true" />
          {other === undefined ? (
            <span className="mono wrap">{path}</span>
          ) : (
            <>
              <CheckpointName job={otherJob} path={other} isElsewhere={otherJob !== job} /> →{" "}
              <CheckpointName job={job} path={path} isElsewhere={otherJob !== job} />
            </>
          )}
        </nav>
        {other === undefined && item && <CheckpointActions job={job} item={item} isWide />}
      </div>
      {other === undefined ? (
        <CheckpointContents job={job} path={path} item={item} />
      ) : (
        <Difference job={otherJob} path={other} other={path} otherJob={job} />
      )}
    </div>
  );
}

/** A checkpoint's path, with its job's name if the two are of different jobs. */
function CheckpointName({ job, path, isElsewhere }: { job: string; path: string; isElsewhere: boolean }) {
  const { data } = useQuery({ ...jobQuery(job), enabled: isElsewhere });
  return (
    <Link to="/jobs/$job/checkpoint" params={{ job }} search={{ path }} className="mono wrap">
      {isElsewhere && `${data?.name ?? job}: `}
      {path}
    </Link>
  );
}

function CheckpointContents({ job, path, item }: { job: string; path: string; item: Checkpoint | undefined }) {
  const [text, setText] = useState("");
  const [kind, setKind] = useState<"" | "weight" | "optimizer">("");
  const search = useDeferredValue(text);
  const query = useInfiniteQuery(tensorsQuery(job, path, search, kind));
  const first = query.data?.pages[0];
  const tensors = query.data?.pages.flatMap((page) => page.items) ?? [];
  const statistics = useInfiniteQuery({ ...statisticsQuery(job, path), enabled: first !== undefined });
  const figures = new Map(
    (statistics.data?.pages.flatMap((page) => page.items) ?? []).map((each) => [each.name, each]),
  );
  if (query.isPending) return <Skeleton rows={10} height={24} />;
  if (first === undefined) return <Failure error={query.error} retry={() => void query.refetch()} />;
  return (
    <>
      <section className="card" aria-label="Summary">
        <div className="tiles narrow">
          {item?.step !== null && item?.step !== undefined && <Tile name="step">{number(item.step)}</Tile>}
          {Object.entries(item?.metrics ?? {})
            .slice(0, 3)
            .map(([name, value]) => (
              <Tile key={name} name={name}>
                {number(value)}
              </Tile>
            ))}
          <Tile name="parameters">{number(first.weight_count)}</Tile>
          <Tile name="weights">{bytes(first.weight_bytes)}</Tile>
          <Tile name="optimizer state">{bytes(first.optimizer_bytes)}</Tile>
          <Tile name="format">{first.format}</Tile>
          {item && (
            <Tile name="saved">
              <Ago at={item.created_at} />
            </Tile>
          )}
        </div>
      </section>
      {(first.notes ?? []).map((note) => (
        <p key={note} className="note warn">
          {note}
        </p>
      ))}
      <div className="row wrapping">
        <input
          className="input narrow"
          type="search"
          aria-label="Search tensors"
          placeholder="Tensor name"
          value={text}
          onChange={(event) => setText(event.target.value)}
        />
        <select
          className="input auto"
          aria-label="Kind"
          value={kind}
          onChange={(event) => setKind(event.target.value as typeof kind)}
        >
          <option value="">Weights and optimizer state</option>
          <option value="weight">Weights</option>
          <option value="optimizer">Optimizer state</option>
        </select>
        <span className="grow" />
        <Statistics query={statistics} done={figures.size} all={first.tensor_count} />
        <span className="dimmer num" role="status">
          {first.found_count.toLocaleString()} {first.found_count === 1 ? "tensor" : "tensors"}
        </span>
      </div>
      {statistics.error !== null && <Failure error={statistics.error} />}
      {tensors.length === 0 ? (
        <section className="card">
          <Empty icon={Layers} title="No matching tensors" />
        </section>
      ) : (
        <Tensors tensors={tensors} figures={figures} isSearched={search !== ""} />
      )}
      {query.hasNextPage && (
        <button
          type="button"
          className="button"
          disabled={query.isFetchingNextPage}
          onClick={() => void query.fetchNextPage()}
        >
          Show more ({tensors.length.toLocaleString()} of {first.found_count.toLocaleString()})
        </button>
      )}
      <Values values={first.values ?? {}} />
    </>
  );
}

function Tile({ name, children }: { name: string; children: ReactNode }) {
  return (
    <div>
      <div className="dimmer cut" title={name}>
        {name}
      </div>
      <div className="value cut">{children}</div>
    </div>
  );
}

interface StatisticsProps {
  query: { hasNextPage: boolean; isFetching: boolean; fetchNextPage: () => unknown };
  done: number;
  all: number;
}

/** Statistics are computed for two seconds at a time, so that opening a large checkpoint stays cheap. */
function Statistics({ query, done, all }: StatisticsProps) {
  if (query.isFetching)
    return (
      <span className="dimmer num">
        computing statistics: {done.toLocaleString()} of {all.toLocaleString()}
      </span>
    );
  if (!query.hasNextPage) return null;
  return (
    <button type="button" className="button small" onClick={() => void query.fetchNextPage()}>
      Compute more statistics ({done.toLocaleString()} of {all.toLocaleString()})
    </button>
  );
}

const FEW_VALUES = 40;

/** Scalars such as the epoch, without torch's module metadata. */
function Values({ values }: { values: Record<string, unknown> }) {
  const scalars = Object.entries(values).filter(
    ([name, value]) => ["number", "string", "boolean"].includes(typeof value) && !name.includes("_metadata"),
  );
  if (scalars.length === 0) return null;
  return (
    <section className="card" aria-label="Other values">
      <header>
        <h2>Other values</h2>
      </header>
      <dl className="facts body">
        {scalars.slice(0, FEW_VALUES).map(([name, value]) => (
          <div key={name} className="fact">
            <dt className="mono wrap">{name}</dt>
            <dd className="mono num">{number(value)}</dd>
          </div>
        ))}
      </dl>
    </section>
  );
}
