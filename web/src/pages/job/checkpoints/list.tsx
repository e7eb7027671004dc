import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import { Save } from "lucide-react";
import { useState } from "react";
import { checkpointsQuery } from "~/api/queries";
import type { Checkpoint } from "~/api/types";
import { Skeleton, Empty, Failure } from "~/components/parts";
import { Ago } from "~/components/time";
import { bytes, number } from "~/lib/format";
import { CheckpointActions } from "./actions";
import { Retention } from "./retention";

const route = getRouteApi("/shell/jobs/$job");

export function Checkpoints() {
  const { job } = route.useParams();
  const { data, error, isPending, refetch } = useQuery(checkpointsQuery(job));
  const [chosen, setChosen] = useState<readonly string[]>([]);
  const items = data?.items ?? [];
  const toggle = (path: string) =>
    setChosen((before) =>
      before.includes(path) ? before.filter((each) => each !== path) : [...before.slice(-1), path],
    );
  // The newer one is compared with the older one.
  const [older, newer] = [...chosen].sort(
    (a, b) => items.findIndex((item) => item.path === b) - items.findIndex((item) => item.path === a),
  );
  return (
    <div className="page-body">
      <section className="card">
        <header>
          <h2 className="grow">Checkpoints</h2>
          {older !== undefined && newer !== undefined && (
            <Link
              to="/jobs/$job/checkpoint"
              params={{ job }}
              search={{ path: newer, other: older }}
              className="button small primary"
            >
              Compare
            </Link>
          )}
          {data?.next_cursor && <span className="dimmer small">newest {items.length.toLocaleString()}</span>}
          {items.length > 1 && chosen.length < 2 && <span className="dimmer small">Select two to compare</span>}
        </header>
        {isPending ? (
          <div className="body">
            <Skeleton rows={5} />
          </div>
        ) : error !== null && data === undefined ? (
          <div className="body">
            <Failure error={error} retry={() => void refetch()} />
          </div>
        ) : items.length === 0 ? (
          <Empty icon={Save} title="No checkpoints yet">
            <p>
              Checkpoints saved under <code>/data/output/checkpoints</code> appear here. A later attempt resumes from
              the newest complete one.
            </p>
          </Empty>
        ) : (
          <div className="table-box">
            <table className="table">
              <thead>
                <tr>
                  <th>
                    <span className="only-read">Choose</span>
                  </th>
                  <th>Checkpoint</th>
                  <th className="right">Step</th>
                  <th>Metrics at that step</th>
                  <th className="right">Size</th>
                  <th>Age</th>
                  <th>
                    <span className="only-read">Actions</span>
                  </th>
                </tr>
              </thead>
              <tbody>
                {items.map((item) => (
                  <Row
                    key={item.path}
                    job={job}
                    item={item}
                    isChosen={chosen.includes(item.path)}
                    toggle={() => toggle(item.path)}
                  />
                ))}
              </tbody>
            </table>
          </div>
        )}
      </section>
      <Retention job={job} />
    </div>
  );
}

function Row({
  job,
  item,
  isChosen,
  toggle,
}: {
  job: string;
  item: Checkpoint;
  isChosen: boolean;
  toggle: () => void;
}) {
  return (
    <tr>
      <td>
        <input
          type="checkbox"
          className="check"
          aria-label={`Choose ${item.path}`}
          checked={isChosen}
          onChange={toggle}
          disabled={item.is_complete === false}
        />
      </td>
      <td className="wrap checkpoint-name">
        {item.is_complete === false ? (
          <span className="mono dim">{item.path}</span>
        ) : (
          <Link to="/jobs/$job/checkpoint" params={{ job }} search={{ path: item.path }} className="mono strong">
            {item.path}
          </Link>
        )}{" "}
        {item.format && <span className="tag">{item.format}</span>}{" "}
        {item.is_pinned && <span className="tag tone-violet">pinned</span>}{" "}
        {item.is_in_use && <span className="tag tone-blue">in use</span>}
        {item.problem && <p className="tone-amber">{item.problem}</p>}
      </td>
      <td className="right num">{number(item.step)}</td>
      <td>
        <span className="row wrapping">
          {Object.entries(item.metrics ?? {})
            .slice(0, 4)
            .map(([name, value]) => (
              <span key={name} className="tag num nowrap">
                {name} {number(value)}
              </span>
            ))}
        </span>
      </td>
      <td className="right num nowrap">{bytes(item.size_bytes)}</td>
      <td className="dim">
        <Ago at={item.created_at} />
      </td>
      <td className="right">
        <CheckpointActions job={job} item={item} />
      </td>
    </tr>
  );
}
