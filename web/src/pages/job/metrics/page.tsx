import { useQuery } from "@tanstack/react-query";
import { getRouteApi } from "@tanstack/react-router";
import { ChartLine, ExternalLink } from "lucide-react";
import { useCallback, useState } from "react";
import { api, unwrap } from "~/api/client";
import { metricNamesQuery, metricSuggestionsQuery, objectSeriesQuery } from "~/api/queries";
import type { ChartSeries } from "~/api/types";
import { type ChartOptions, ChartOptionsControls, MetricCard } from "~/components/charts/metricCard";
import { Skeleton, Empty, Failure } from "~/components/parts";
import { toast } from "~/components/shell/toasts";
import { useNewPoints } from "./newPoints";
import { Objects } from "./objects";

const route = getRouteApi("/shell/jobs/$job");

/** Name of a series: its replica, and the attempt if there was more than one. */
export function replicaOf(series: ChartSeries): string {
  return `${series.role}-${series.index}${series.attempt > 1 ? ` · attempt ${series.attempt}` : ""}`;
}

export function Metrics() {
  const { job } = route.useParams();
  const [options, setOptions] = useState<ChartOptions>({ by: "step", isLog: false, smoothing: 0 });
  const [text, setText] = useState("");
  const { data: names, error, isPending, refetch } = useQuery(metricNamesQuery(job, false));
  const problem = useNewPoints(job);
  const { data: objects } = useQuery(objectSeriesQuery(job));
  const hasObjects = (objects ?? []).length > 0;
  const label = useCallback(replicaOf, []);
  const shown = (names ?? []).filter((name) => name.toLowerCase().includes(text.toLowerCase()));
  return (
    <div className="page-body">
      <div className="row wrapping">
        <input
          className="input narrow"
          type="search"
          aria-label="Search metrics"
          placeholder="Metric name"
          value={text}
          onChange={(event) => setText(event.target.value)}
        />
        <ChartOptionsControls options={options} set={setOptions} />
        <span className="grow" />
        <TensorBoard jobs={[job]} />
      </div>
      {problem !== null && <Failure error={problem} />}
      {isPending ? (
        <Skeleton rows={6} height={40} />
      ) : error !== null && names === undefined ? (
        <Failure error={error} retry={() => void refetch()} />
      ) : shown.length === 0 && !hasObjects ? (
        <div className="card">
          <Empty icon={ChartLine} title={text ? "No matching metrics" : "No metrics yet"}>
            <p>
              Metrics are collected from TensorBoard files, MLflow, log lines such as <code>loss=0.31 step=20</code>,
              and the training library.
            </p>
            {text === "" && <Suggestions job={job} />}
          </Empty>
        </div>
      ) : (
        <div className="metrics">
          {shown.map((name) => (
            <MetricCard key={name} jobs={[job]} name={name} label={label} {...options} />
          ))}
        </div>
      )}
      <Objects job={job} text={text} />
    </div>
  );
}

/** Lines of the log that look like metrics, and the part of the spec that reads them. */
function Suggestions({ job }: { job: string }) {
  const { data: suggestions } = useQuery(metricSuggestionsQuery(job, true));
  if (suggestions === undefined || suggestions.length === 0) return null;
  const patterns = suggestions.map(({ pattern }) => `  - ${JSON.stringify(pattern)}\n`).join("");
  return (
    <>
      <p>These lines of the log look like metrics:</p>
      <pre className="code" aria-label="Lines that look like metrics">
        {suggestions.map(({ line }) => `${line}\n`).join("")}
      </pre>
      <p>Add patterns to the spec, and submit the job again:</p>
      <pre className="code" aria-label="Patterns">{`metric_patterns:\n${patterns}`}</pre>
    </>
  );
}

export function TensorBoard({ jobs }: { jobs: readonly string[] }) {
  const [isBusy, setBusy] = useState(false);
  const open = async () => {
    setBusy(true);
    try {
      const board = await unwrap(api.POST("/api/v1/tensorboards", { body: { jobs: [...jobs] } }));
      // Without a reference to this page: TensorBoard's content comes from users' files.
      window.open(board.path, "_blank", "noopener,noreferrer");
    } catch (error) {
      toast(error instanceof Error ? error.message : String(error), "bad");
    } finally {
      setBusy(false);
    }
  };
  return (
    <button type="button" className="button" disabled={isBusy} onClick={open}>
      <ExternalLink size={14} aria-hidden="true" /> TensorBoard
    </button>
  );
}
