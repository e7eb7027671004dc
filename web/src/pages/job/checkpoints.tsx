import { useQuery, useQueryClient } from "@tanstack/react-query";
import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { GitFork, Save } from "lucide-react";
import { useState } from "react";
import { api, got } from "~/api/client";
import { checkpointsQuery, keys } from "~/api/queries";
import { Bones, Empty, Failure } from "~/components/parts";
import { Ago } from "~/components/time";
import { toast } from "~/components/toasts";
import { bytes, number } from "~/lib/format";

const route = getRouteApi("/shell/jobs/$job");

export function Checkpoints() {
  const { job } = route.useParams();
  const { data, error, isPending, refetch } = useQuery(checkpointsQuery(job));
  const items = data?.items ?? [];
  return (
    <div className="page-body">
      <section className="card">
        <header>
          <h2 className="grow">Complete checkpoints, newest first</h2>
          {items.length > 0 && <Fork job={job} />}
        </header>
        {isPending ? (
          <div className="body">
            <Bones rows={5} />
          </div>
        ) : error !== null ? (
          <div className="body">
            <Failure error={error} retry={() => void refetch()} />
          </div>
        ) : items.length === 0 ? (
          <Empty icon={Save} title="No checkpoint yet">
            <p>
              What the job saves under <code>/data/output/checkpoints</code> shows up here as it lands, and a later attempt goes
              on from the newest one.
            </p>
          </Empty>
        ) : (
          <div className="table-box">
            <table className="table">
              <thead>
                <tr>
                  <th>Checkpoint</th>
                  <th className="right">Step</th>
                  <th>Metrics at that step</th>
                  <th className="right">Size</th>
                  <th className="right">Attempt</th>
                  <th>Age</th>
                </tr>
              </thead>
              <tbody>
                {items.map((item) => (
                  <tr key={item.path}>
                    <td className="mono wrap">
                      <Link to="/jobs/$job/files" params={{ job }} search={{ path: item.path.split("/").slice(0, -1).join("/") }}>
                        {item.path}
                      </Link>
                    </td>
                    <td className="right num">{number(item.step)}</td>
                    <td>
                      <span className="row wrapping">
                        {Object.entries(item.metrics ?? {})
                          .slice(0, 4)
                          .map(([name, value]) => (
                            <span key={name} className="tag num">
                              {name} {number(value)}
                            </span>
                          ))}
                      </span>
                    </td>
                    <td className="right num nowrap">{bytes(item.size_bytes)}</td>
                    <td className="right num">{item.attempt_number ?? "–"}</td>
                    <td className="dim">
                      <Ago at={item.created_at} />
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
      </section>
    </div>
  );
}

/** A new job of the same spec that begins at the newest checkpoint. */
function Fork({ job }: { job: string }) {
  const client = useQueryClient();
  const navigate = useNavigate();
  const [isBusy, setBusy] = useState(false);
  const fork = async () => {
    setBusy(true);
    try {
      const params = { path: { job }, header: { "Idempotency-Key": crypto.randomUUID() } };
      const made = await got(api.POST("/api/v1/jobs/{job}/clone", { params, body: { resume: true } }));
      await client.invalidateQueries({ queryKey: keys.jobs });
      toast(`Submitted ${made.name}, which begins at the newest checkpoint.`);
      await navigate({ to: "/jobs/$job", params: { job: made.id } });
    } catch (error) {
      toast(error instanceof Error ? error.message : String(error), "bad");
    } finally {
      setBusy(false);
    }
  };
  return (
    <button type="button" className="button small" disabled={isBusy} onClick={fork}>
      <GitFork size={14} aria-hidden="true" /> New job from the newest
    </button>
  );
}
