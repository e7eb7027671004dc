import { useQuery } from "@tanstack/react-query";
import { getRouteApi } from "@tanstack/react-router";
import { Gauge, TriangleAlert } from "lucide-react";
import { useCallback } from "react";
import { metricNamesQuery, resourcesQuery } from "~/api/queries";
import { MetricCard } from "~/components/charts/metricCard";
import { Skeleton, Card, Empty, Failure, Sentence } from "~/components/parts";
import { bytes, duration, number } from "~/lib/format";
import { replicaOf } from "./page";
import { useNewPoints } from "./newPoints";

const route = getRouteApi("/shell/jobs/$job");

export function Resources() {
  const { job } = route.useParams();
  const { data, error, isPending, refetch } = useQuery(resourcesQuery(job));
  const { data: names } = useQuery(metricNamesQuery(job, true));
  useNewPoints(job);
  const label = useCallback(replicaOf, []);
  const rate = (value: number | null | undefined) =>
    value === null || value === undefined ? "–" : `${bytes(value)}/s`;
  if (isPending) {
    return (
      <div className="page-body">
        <Skeleton rows={6} height={30} />
      </div>
    );
  }
  return (
    <div className="page-body">
      {error !== null && <Failure error={error} retry={() => void refetch()} />}
      {(data?.notes ?? []).map((note) => (
        <div key={note} className="note warn">
          <TriangleAlert size={16} aria-hidden="true" />
          <div>
            <Sentence text={note} />
          </div>
        </div>
      ))}
      {data && data.replicas.length > 0 ? (
        <Card title="Replicas" aside={<span className="dimmer">mean of the last {duration(data.window_s)}</span>} flush>
          <div className="table-box">
            <table className="table">
              <thead>
                <tr>
                  <th>Replica</th>
                  <th className="right">CPU</th>
                  <th className="right">Memory</th>
                  <th className="right">Peak</th>
                  <th className="right">Disk read</th>
                  <th className="right">Disk written</th>
                  <th className="right">Network in</th>
                  <th className="right">Network out</th>
                  <th>GPUs</th>
                </tr>
              </thead>
              <tbody>
                {data.replicas.map((use) => (
                  <tr key={`${use.attempt}/${use.role}-${use.index}`}>
                    <td className="mono nowrap">
                      {use.role}-{use.index}
                    </td>
                    <td className="right num">
                      {use.cpu_percent === null || use.cpu_percent === undefined
                        ? "–"
                        : `${number(Math.round(use.cpu_percent))} %`}
                    </td>
                    <td className="right num nowrap">{bytes(use.memory_bytes)}</td>
                    <td className="right num nowrap dim">{bytes(use.memory_peak_bytes)}</td>
                    <td className="right num nowrap">{rate(use.disk_read_bytes_s)}</td>
                    <td className="right num nowrap">{rate(use.disk_written_bytes_s)}</td>
                    <td className="right num nowrap">{rate(use.network_received_bytes_s)}</td>
                    <td className="right num nowrap">{rate(use.network_sent_bytes_s)}</td>
                    <td>
                      <span className="row wrapping">
                        {(use.gpus ?? []).map((gpu) => (
                          <span
                            key={gpu.index}
                            className={`tag num${gpu.is_idle ? " tone-amber" : ""}`}
                            title={[
                              bytes(gpu.memory_bytes),
                              `${number(gpu.power_w)} W`,
                              `${number(gpu.temperature_c)} °C`,
                            ].join(", ")}
                          >
                            {gpu.index}:{" "}
                            {gpu.utilisation_percent === null || gpu.utilisation_percent === undefined
                              ? "–"
                              : `${Math.round(gpu.utilisation_percent)} %`}
                            {gpu.is_idle && " idle"}
                          </span>
                        ))}
                      </span>
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
          {data.replicas.some(
            (use) => typeof use.cpu_percent === "number" && typeof use.network_received_bytes_s !== "number",
          ) && <p className="dim card-note">No network figures: a plain process shares the network of its machine.</p>}
        </Card>
      ) : (
        <div className="card">
          <Empty icon={Gauge} title="No measurements yet">
            <p>CPU, memory, disk, network and GPU usage of each replica appears a few seconds after it starts.</p>
          </Empty>
        </div>
      )}
      <div className="metrics">
        {(names ?? []).map((name) => (
          <MetricCard key={name} jobs={[job]} name={name} label={label} by="time" isLog={false} smoothing={0} />
        ))}
      </div>
    </div>
  );
}
