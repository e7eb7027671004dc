import { useQueries, useQueryClient } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import { GitCompareArrows } from "lucide-react";
import { useCallback, useEffect, useState } from "react";
import { isOver, jobQuery, keys, metricSeriesQuery } from "~/api/queries";
import type { ChartSeries, JobDetail, MetricSeries } from "~/api/types";
import { type ChartOptions, ChartOptionsControls, MetricCard } from "~/components/charts/metricCard";
import { Skeleton, Card, Empty, Failure, PageHead, TableBox } from "~/components/parts";
import { State } from "~/components/state";
import { RunTime } from "~/components/time";
import { splitList } from "~/lib/filters";
import { number } from "~/lib/format";
import { newestValues } from "~/lib/headlineMetrics";
import { replicaOf, TensorBoard } from "~/pages/job/metrics/page";
import { CheckpointPair } from "./checkpoints";
import { CodeDifference } from "./code";
import { Parameters, Specs } from "./specs";

const route = getRouteApi("/shell/compare");
const MOST = 8; // jobs
const REFRESH_MS = 5_000; // while a job runs
const FEW_METRICS = 12; // rows of results; the charts show all metrics

export function ComparePage() {
  const { jobs: text } = route.useSearch();
  const ids = splitList(text).slice(0, MOST);
  const queries = useQueries({ queries: ids.map((id) => jobQuery(id)) });
  const found = queries.flatMap((query) => (query.data ? [query.data] : []));
  const failed = queries.find((query) => query.error !== null && query.data === undefined);
  if (ids.length < 2) {
    return (
      <Empty icon={GitCompareArrows} title="Choose at least two jobs">
        <p>Select jobs in the list, then press Compare.</p>
        <Link to="/jobs" className="button">
          Show jobs
        </Link>
      </Empty>
    );
  }
  return (
    <div className="page-body">
      <PageHead title="Compare" about={`Baseline: ${found[0]?.name ?? "first job"}`} />
      {failed && <Failure error={failed.error} retry={() => void failed.refetch()} />}
      {found.length < ids.length ? !failed && <Skeleton rows={8} height={30} /> : <Comparison jobs={found} />}
    </div>
  );
}

function Comparison({ jobs }: { jobs: readonly JobDetail[] }) {
  const queries = useQueries({ queries: jobs.map((job) => metricSeriesQuery(job.id, false)) });
  const series = queries.map((query) => query.data ?? []);
  const names = [...new Set(series.flat().map((each) => each.name))].sort();
  useMetricRefresh(jobs);
  return (
    <>
      <Results jobs={jobs} series={series} names={names} />
      <Parameters jobs={jobs} />
      {queries.some((query) => query.isPending) ? (
        <Skeleton rows={6} height={40} />
      ) : (
        names.length > 0 && <Charts jobs={jobs} names={names} />
      )}
      <Specs jobs={jobs} />
      <CodeDifference jobs={jobs} />
      <CheckpointPair jobs={jobs} />
    </>
  );
}

/** Polls metrics while any of the jobs runs. A stream for each job would use up the browser's connections. */
function useMetricRefresh(jobs: readonly JobDetail[]): void {
  const client = useQueryClient();
  const running = jobs
    .filter((job) => !isOver(job.state))
    .map((job) => job.id)
    .join(",");
  useEffect(() => {
    if (!running) return;
    const timer = setInterval(() => {
      for (const job of running.split(",")) void client.invalidateQueries({ queryKey: keys.jobMetrics(job) });
      void client.invalidateQueries({ queryKey: keys.charts });
    }, REFRESH_MS);
    return () => clearInterval(timer);
  }, [client, running]);
}

interface ResultsProps {
  jobs: readonly JobDetail[];
  series: readonly (readonly MetricSeries[])[];
  names: readonly string[];
}

function Results({ jobs, series, names }: ResultsProps) {
  const newest = series.map(newestValues);
  const rows: { head: string; cells: React.ReactNode[] }[] = [
    { head: "State", cells: jobs.map((job) => <State key={job.id} state={job.state} />) },
    {
      head: "Ran",
      cells: jobs.map((job) => <RunTime key={job.id} seconds={job.ran_s ?? 0} since={job.running_since} />),
    },
    { head: "Step", cells: jobs.map((job) => number((job.progress ?? {})["step"])) },
    ...names.slice(0, FEW_METRICS).map((name) => ({ head: name, cells: newest.map((values) => number(values[name])) })),
  ];
  return (
    <Card title="Results" flush>
      <TableBox label="Results">
        <table className="table compare" style={{ minWidth: 130 + jobs.length * 170 }}>
          <thead>
            <tr>
              <th>
                <span className="only-read">What</span>
              </th>
              {jobs.map((job) => (
                <th key={job.id}>
                  <Link to="/jobs/$job" params={{ job: job.id }} className="strong wrap">
                    {job.name}
                  </Link>
                  <div className="mono dimmer">{job.id}</div>
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map(({ head, cells }) => (
              <tr key={head}>
                <th scope="row" className="wrap">
                  {head}
                </th>
                {jobs.map((job, i) => (
                  <td key={job.id} className="num">
                    {cells[i]}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </TableBox>
    </Card>
  );
}

/** All metrics, each with all jobs in one chart. */
function Charts({ jobs, names }: { jobs: readonly JobDetail[]; names: readonly string[] }) {
  const [options, setOptions] = useState<ChartOptions>({ by: "step", isLog: false, smoothing: 0 });
  const ids = jobs.map((job) => job.id);
  const titles = Object.fromEntries(
    jobs.map((job) => [job.id, jobs.filter((each) => each.name === job.name).length > 1 ? job.id : job.name]),
  );
  const titleText = JSON.stringify(titles);
  const label = useCallback(
    (series: ChartSeries) => {
      const title = (JSON.parse(titleText) as Record<string, string>)[series.job] ?? series.job;
      return series.index > 0 ? `${title} ${replicaOf(series)}` : title;
    },
    [titleText],
  );
  return (
    <section className="stack">
      <div className="row wrapping">
        <h2 className="grow">Metrics</h2>
        <ChartOptionsControls options={options} set={setOptions} />
        <TensorBoard jobs={ids} />
      </div>
      <div className="metrics">
        {names.map((name) => (
          <MetricCard key={name} jobs={ids} name={name} label={label} {...options} />
        ))}
      </div>
    </section>
  );
}
