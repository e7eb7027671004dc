import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import { ChevronRight, Layers } from "lucide-react";
import { useDeferredValue, useState } from "react";
import { checkpointsQuery, statisticsQuery, tensorsQuery } from "~/api/queries";
import type { Tensor, TensorFigures } from "~/api/types";
import { Bones, Empty, Failure } from "~/components/parts";
import { bytes, number } from "~/lib/format";
import { CheckpointActions } from "./checkpoints";
import { Difference } from "./checkpointDiff";
import { Histogram } from "./histogram";

const route = getRouteApi("/shell/jobs/$job/checkpoint");

/** The inside of one checkpoint, or of what lies between two. */
export function CheckpointPage() {
  const { job } = route.useParams();
  const { path = "", other } = route.useSearch();
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
          <span className="mono wrap">{other ? `${other} → ${path}` : path}</span>
        </nav>
        {other === undefined && item && <CheckpointActions job={job} item={item} />}
      </div>
      {other === undefined ? <Inside job={job} path={path} /> : <Difference job={job} path={other} other={path} />}
    </div>
  );
}

function Inside({ job, path }: { job: string; path: string }) {
  const [text, setText] = useState("");
  const [kind, setKind] = useState<"" | "weight" | "optimizer">("");
  const search = useDeferredValue(text);
  const query = useInfiniteQuery(tensorsQuery(job, path, search, kind));
  const first = query.data?.pages[0];
  const tensors = query.data?.pages.flatMap((page) => page.items) ?? [];
  const statistics = useInfiniteQuery({ ...statisticsQuery(job, path), enabled: first !== undefined });
  const byName = new Map((statistics.data?.pages.flatMap((page) => page.items) ?? []).map((each) => [each.name, each]));
  if (query.isPending) return <Bones rows={10} height={24} />;
  if (first === undefined) return <Failure error={query.error} retry={() => void query.refetch()} />;
  return (
    <>
      <section className="card" aria-label="The whole">
        <div className="tiles">
          <Tile name="format" value={first.format} />
          <Tile name="parameters" value={number(first.weight_count)} />
          <Tile name="weights" value={bytes(first.weight_bytes)} />
          <Tile name="optimizer state" value={bytes(first.optimizer_bytes)} />
          <Tile name="tensors" value={number(first.tensor_count)} />
          {Object.entries(first.values ?? {})
            .filter(([, value]) => ["number", "string", "boolean"].includes(typeof value))
            .slice(0, 4)
            .map(([name, value]) => (
              <Tile key={name} name={name} value={number(value)} />
            ))}
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
          placeholder="Name of a tensor"
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
        <span className="dimmer num" role="status">
          {first.found_count.toLocaleString()} tensors
        </span>
        <Statistics query={statistics} done={byName.size} all={first.tensor_count} />
      </div>
      {statistics.error !== null && <Failure error={statistics.error} />}
      <section className="card" aria-label="Tensors">
        {tensors.length === 0 ? (
          <Empty icon={Layers} title="No tensor is like that" />
        ) : (
          <div className="table-box">
            <table className="table tensors">
              <thead>
                <tr>
                  <th>Tensor</th>
                  <th>Shape</th>
                  <th>Type</th>
                  <th className="right">Size</th>
                  <th className="right">Norm</th>
                  <th className="right">Mean</th>
                  <th className="right">Min … max</th>
                  <th className="right">Zeros</th>
                  <th className="right">NaN, Inf</th>
                  <th>Histogram</th>
                </tr>
              </thead>
              <tbody>
                {tensors.map((tensor, i) => (
                  <TensorRow key={tensor.name} tensor={tensor} before={tensors[i - 1]?.layer} found={byName.get(tensor.name)} />
                ))}
              </tbody>
            </table>
          </div>
        )}
      </section>
      {query.hasNextPage && (
        <button type="button" className="button" disabled={query.isFetchingNextPage} onClick={() => void query.fetchNextPage()}>
          Show more
        </button>
      )}
    </>
  );
}

function Tile({ name, value }: { name: string; value: string }) {
  return (
    <div>
      <div className="dimmer cut" title={name}>
        {name}
      </div>
      <div className="value cut" title={value}>
        {value}
      </div>
    </div>
  );
}

interface StatisticsProps {
  query: { hasNextPage: boolean; isFetching: boolean; fetchNextPage: () => unknown };
  done: number;
  all: number;
}

/** Figures are computed for two seconds at a time, so that a glance at a large checkpoint costs little. */
function Statistics({ query, done, all }: StatisticsProps) {
  if (query.isFetching)
    return (
      <span className="dimmer">
        computing figures: {done} of {all}
      </span>
    );
  if (!query.hasNextPage) return null;
  return (
    <button type="button" className="button small" onClick={() => void query.fetchNextPage()}>
      Figures of more ({done} of {all})
    </button>
  );
}

function TensorRow({ tensor, before, found }: { tensor: Tensor; before: string | undefined; found: TensorFigures | undefined }) {
  const bad = (found?.nan_count ?? 0) + (found?.infinite_count ?? 0);
  const name =
    tensor.layer && tensor.name.startsWith(`${tensor.layer}.`) ? tensor.name.slice(tensor.layer.length + 1) : tensor.name;
  return (
    <>
      {tensor.layer && tensor.layer !== before && (
        <tr className="layer">
          <th scope="rowgroup" colSpan={10} className="mono">
            {tensor.layer}
          </th>
        </tr>
      )}
      <tr>
        <td className="mono wrap" title={tensor.name}>
          {name} {tensor.kind === "optimizer" && <span className="tag">optimizer</span>}
          {(tensor.note || found?.note) && <p className="tone-amber">{tensor.note || found?.note}</p>}
        </td>
        <td className="mono nowrap">{tensor.shape.join(" × ") || "scalar"}</td>
        <td className="mono dim">{tensor.dtype}</td>
        <td className="right num nowrap dim">{bytes(tensor.size_bytes)}</td>
        <td className="right num">{found ? number(found.norm) : ""}</td>
        <td className="right num">{found ? number(found.mean) : ""}</td>
        <td className="right num nowrap">{found ? `${number(found.minimum)} … ${number(found.maximum)}` : ""}</td>
        <td className="right num">
          {found?.zero_share === null || found?.zero_share === undefined
            ? ""
            : `${(found.zero_share * 100).toFixed(found.zero_share > 0.1 ? 0 : 1)} %`}
        </td>
        <td className={`right num${bad > 0 ? " tone-red strong" : " dimmer"}`}>{found ? number(bad) : ""}</td>
        <td>{found?.histogram && <Histogram histogram={found.histogram} />}</td>
      </tr>
    </>
  );
}
