import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import { History } from "lucide-react";
import { modelHistoryQuery } from "~/api/models";
import type { ModelChange } from "~/api/types";
import { Skeleton, Card, Empty, Failure } from "~/components/parts";
import { Ago } from "~/components/time";
import { changeText } from "./changeText";
import type { ModelKey } from "./parts";

const route = getRouteApi("/shell/models/$project/$model");

/** Changes of a model and its versions, newest first. */
export function ModelHistory() {
  const { project, model } = route.useParams();
  const { data, error, isPending, refetch } = useQuery(modelHistoryQuery(project, model));
  return (
    <div className="page-body">
      <Card
        title="History"
        aside={data?.next_cursor && <span className="dimmer small">newest {data.items.length.toLocaleString()}</span>}
      >
        {isPending ? (
          <Skeleton rows={6} />
        ) : data === undefined ? (
          <Failure error={error} retry={() => void refetch()} />
        ) : data.items.length === 0 ? (
          <Empty icon={History} title="No changes yet" />
        ) : (
          <Changes modelKey={{ project, model }} changes={data.items} />
        )}
      </Card>
    </div>
  );
}

export function Changes({ modelKey, changes }: { modelKey: ModelKey; changes: readonly ModelChange[] }) {
  return (
    <ol className="events">
      {changes.map((change, i) => {
        const { text, tone } = changeText(change);
        return (
          <li key={`${change.at}${i}`} className="event">
            <span className={`event-dot fill-${tone}`} />
            <div className="grow">
              <div className="row wrapping">
                <span className="event-kind">{text}</span>
                {change.version != null && (
                  <Link
                    to="/models/$project/$model/versions/$version"
                    params={{ ...modelKey, version: String(change.version) }}
                    className="num"
                  >
                    v{change.version}
                  </Link>
                )}
                <span className="dim">
                  by {change.user}, <Ago at={change.at} />
                </span>
              </div>
              {change.reason && <p className="dim wrap">{change.reason}</p>}
            </div>
          </li>
        );
      })}
    </ol>
  );
}
