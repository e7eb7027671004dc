import { useInfiniteQuery } from "@tanstack/react-query";
import { Equal } from "lucide-react";
import { useState } from "react";
import { differenceQuery } from "~/api/queries";
import { Bones, Card, Empty, Failure } from "~/components/parts";
import { number } from "~/lib/format";

const TONES: Record<string, string> = {
  appeared: "green",
  went: "red",
  reshaped: "amber",
  moved: "blue",
  same: "grey",
  unread: "amber",
};

/** Which tensors came, went, changed their shape, and how far the others moved. */
export function Difference({ job, path, other }: { job: string; path: string; other: string }) {
  const query = useInfiniteQuery(differenceQuery(job, path, other));
  const [isAll, setAll] = useState(false);
  const pages = query.data?.pages ?? [];
  const first = pages[0];
  if (query.isPending) return <Bones rows={10} height={24} />;
  if (first === undefined) return <Failure error={query.error} retry={() => void query.refetch()} />;
  const items = pages.flatMap((page) => page.items).filter((item) => isAll || item.change !== "same");
  const layers = pages.at(-1)?.layers ?? [];
  const furthest = Math.max(...items.map((item) => item.relative_norm ?? 0), 1e-12);
  return (
    <>
      <section className="card" aria-label="The whole">
        <div className="tiles">
          {(
            [
              ["appeared", first.appeared_count],
              ["went", first.went_count],
              ["reshaped", first.reshaped_count],
              ["in both", first.common_count],
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
        <Card title="Layers, by how far they moved" flush>
          <div className="table-box">
            <table className="table">
              <thead>
                <tr>
                  <th>Layer</th>
                  <th className="right">Tensors</th>
                  <th className="right">Relative norm of the move</th>
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
                      <td className="right num">{number(layer.relative_norm)}</td>
                      <td className="right num">{number(layer.cosine)}</td>
                    </tr>
                  ))}
              </tbody>
            </table>
          </div>
        </Card>
      )}
      <Card
        title="Tensors"
        aside={
          <label className="row">
            <input type="checkbox" className="check" checked={isAll} onChange={(event) => setAll(event.target.checked)} /> also
            what is equal
          </label>
        }
        flush
      >
        {items.length === 0 ? (
          <Empty icon={Equal} title="The tensors are equal" />
        ) : (
          <div className="table-box">
            <table className="table">
              <thead>
                <tr>
                  <th>Tensor</th>
                  <th>Change</th>
                  <th>Shape</th>
                  <th className="right">Relative norm</th>
                  <th className="right">Cosine</th>
                  <th className="right">Largest move</th>
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
                    <td className={`tone-${TONES[item.change] ?? "grey"}`}>{item.change}</td>
                    <td className="mono nowrap">
                      {item.change === "reshaped"
                        ? `${item.shape_before?.join(" × ")} → ${item.shape_after?.join(" × ")}`
                        : (item.shape_after ?? item.shape_before)?.join(" × ")}
                    </td>
                    <td className="right num">
                      <span className="row end">
                        {item.relative_norm !== null && item.relative_norm !== undefined && (
                          <span className="meter move" aria-hidden="true">
                            <span style={{ width: `${Math.min(1, item.relative_norm / furthest) * 100}%` }} />
                          </span>
                        )}
                        {number(item.relative_norm)}
                      </span>
                    </td>
                    <td className="right num">{number(item.cosine)}</td>
                    <td className="right num">{number(item.largest_move)}</td>
                    <td className="right num">{number(item.changed_count)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
      </Card>
      {query.hasNextPage && (
        <button type="button" className="button" disabled={query.isFetchingNextPage} onClick={() => void query.fetchNextPage()}>
          {query.isFetchingNextPage ? "Computing…" : "Compare more tensors"}
        </button>
      )}
    </>
  );
}
