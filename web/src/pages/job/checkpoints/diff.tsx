import { useInfiniteQuery } from "@tanstack/react-query";
import { Equal } from "lucide-react";
import { useState } from "react";
import { differenceQuery } from "~/api/queries";
import { ShowEqualToggle, Skeleton, Card, Empty, Failure, TableBox } from "~/components/parts";
import { number } from "~/lib/format";

const CHANGES: Record<string, string> = {
  added: "added",
  removed: "removed",
  reshaped: "shape changed",
  moved: "changed",
  same: "equal",
  unread: "not compared",
};

const TONES: Record<string, string> = {
  added: "green",
  removed: "red",
  reshaped: "amber",
  moved: "blue",
  same: "grey",
  unread: "amber",
};

interface DifferenceProps {
  job: string;
  path: string;
  other: string;
  otherJob: string;
}

/** From `path` of `job` to `other` of `otherJob`: tensors added, removed, reshaped, and how much the others changed. */
export function Difference({ job, path, other, otherJob }: DifferenceProps) {
  const query = useInfiniteQuery(differenceQuery(job, path, other, otherJob));
  const [isAll, setAll] = useState(false);
  const pages = query.data?.pages ?? [];
  const first = pages[0];
  if (query.isPending) return <Skeleton rows={10} height={24} />;
  if (first === undefined) return <Failure error={query.error} retry={() => void query.refetch()} />;
  const items = pages.flatMap((page) => page.items).filter((item) => isAll || item.change !== "same");
  const layers = pages.at(-1)?.layers ?? [];
  const furthest = items.reduce((most, item) => Math.max(most, item.relative_norm ?? 0), 1e-12);
  const furthestLayer = layers.reduce((most, layer) => Math.max(most, layer.relative_norm ?? 0), 1e-12);
  return (
    <>
      <section className="card" aria-label="Summary">
        <div className="tiles">
          {(
            [
              ["Added", first.added_count],
              ["Removed", first.removed_count],
              ["Shape changed", first.reshaped_count],
              ["In both", first.common_count],
            ] as const
          ).map(([name, count]) => (
            <div key={name}>
              <div className="dimmer">{name}</div>
              <div className="value">{number(count)}</div>
            </div>
          ))}
        </div>
      </section>
      {layers.length > 0 && (
        <Card title="Layers by relative change" flush>
          <TableBox label="Layers">
            <table className="table">
              <thead>
                <tr>
                  <th>Layer</th>
                  <th className="right">Tensors</th>
                  <th className="right">Relative change</th>
                  <th className="right">Cosine</th>
                </tr>
              </thead>
              <tbody>
                {[...layers]
                  .sort((a, b) => (b.relative_norm ?? 0) - (a.relative_norm ?? 0))
                  .slice(0, 50)
                  .map((layer) => (
                    <tr key={layer.layer}>
                      <td className="mono wrap">{layer.layer || "–"}</td>
                      <td className="right num">{layer.tensor_count}</td>
                      <td>
                        <Move norm={layer.relative_norm} most={furthestLayer} />
                      </td>
                      <td className="right num">{number(layer.cosine)}</td>
                    </tr>
                  ))}
              </tbody>
            </table>
          </TableBox>
        </Card>
      )}
      <Card title="Tensors" aside={<ShowEqualToggle isAll={isAll} set={setAll} />} flush>
        {items.length === 0 ? (
          <Empty icon={Equal} title="The tensors are identical" />
        ) : (
          <TableBox label="Tensors">
            <table className="table">
              <thead>
                <tr>
                  <th>Tensor</th>
                  <th>Change</th>
                  <th>Shape</th>
                  <th className="right">Relative norm</th>
                  <th className="right">Cosine</th>
                  <th className="right">Largest change</th>
                  <th className="right">Changed elements</th>
                </tr>
              </thead>
              <tbody>
                {items.map((item) => (
                  <tr key={item.name}>
                    <td className="mono wrap">
                      {item.name}
                      {item.note && <p className="tone-amber">{item.note}</p>}
                    </td>
                    <td className={`tone-${TONES[item.change] ?? "grey"}`}>{CHANGES[item.change] ?? item.change}</td>
                    <td className="mono nowrap">
                      {item.change === "reshaped"
                        ? `${item.shape_before?.join(" × ")} → ${item.shape_after?.join(" × ")}`
                        : (item.shape_after ?? item.shape_before)?.join(" × ")}
                    </td>
                    <td>
                      <Move norm={item.relative_norm} most={furthest} />
                    </td>
                    <td className="right num">{number(item.cosine)}</td>
                    <td className="right num">{number(item.largest_move)}</td>
                    <td className="right num">{number(item.changed_count)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </TableBox>
        )}
      </Card>
      {query.hasNextPage && (
        <button
          type="button"
          className="button"
          disabled={query.isFetchingNextPage}
          onClick={() => void query.fetchNextPage()}
        >
          {query.isFetchingNextPage ? "Computing…" : "Compare more tensors"}
        </button>
      )}
    </>
  );
}

/** Relative norm of a change, as a number and as a bar relative to the largest change. */
function Move({ norm, most }: { norm: number | null | undefined; most: number }) {
  return (
    <span className="row end">
      {norm !== null && norm !== undefined && (
        <span className="meter move" aria-hidden="true">
          <span style={{ width: `${Math.min(1, norm / most) * 100}%` }} />
        </span>
      )}
      <span className="num move-number">{number(norm)}</span>
    </span>
  );
}
