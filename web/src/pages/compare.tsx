import { useQueries } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import { GitCompareArrows } from "lucide-react";
import { useCallback, useState } from "react";
import { jobQuery, metricNamesQuery } from "~/api/queries";
import type { ChartSeries, JobDetail } from "~/api/types";
import { type Look, LookControls, MetricCard } from "~/components/metricCard";
import { Bones, Card, Empty, Failure, PageHead } from "~/components/parts";
import { State } from "~/components/state";
import { Ran } from "~/components/time";
import { difference } from "~/lib/difference";
import { listed } from "~/lib/filters";
import { number } from "~/lib/format";
import { replicaOf, TensorBoard } from "~/pages/job/metrics";

const route = getRouteApi("/shell/compare");

export function ComparePage() {
  const { jobs: text } = route.useSearch();
  const ids = listed(text).slice(0, 8);
  const queries = useQueries({ queries: ids.map((id) => jobQuery(id)) });
  const found = queries.flatMap((query) => (query.data ? [query.data] : []));
  const failed = queries.find((query) => query.error !== null && query.data === undefined);
  if (ids.length < 2) {
    return (
      <Empty icon={GitCompareArrows} title="Choose two jobs or more">
        <p>Tick them in the list of jobs, then press Compare.</p>
        <Link to="/jobs" className="button">
          To the jobs
        </Link>
      </Empty>
    );
  }
  return (
    <div className="page-body">
      <PageHead title="Compare" about={`${ids.length} jobs`} />
      {failed && <Failure error={failed.error} retry={() => void failed.refetch()} />}
      {found.length < ids.length && !failed ? <Bones rows={8} /> : <Comparison jobs={found} />}
    </div>
  );
}

function Comparison({ jobs }: { jobs: readonly JobDetail[] }) {
  const [isAll, setAll] = useState(false);
  const rows = difference(jobs.map((job) => job.spec));
  const shown = isAll ? rows : rows.filter((row) => row.isDifferent);
  const metricNames = [...new Set(jobs.flatMap((job) => Object.keys(metricsOf(job))))].sort();
  return (
    <>
      <Card title="Results" flush>
        <div className="table-box">
          <table className="table compare">
            <thead>
              <tr>
                <th>
                  <span className="only-read">What</span>
                </th>
                {jobs.map((job) => (
                  <th key={job.id}>
                    <Link to="/jobs/$job" params={{ job: job.id }} className="strong">
                      {job.name}
                    </Link>
                    <div className="mono dimmer">{job.id}</div>
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              <tr>
                <th scope="row">State</th>
                {jobs.map((job) => (
                  <td key={job.id}>
                    <State state={job.state} />
                  </td>
                ))}
              </tr>
              <tr>
                <th scope="row">Ran</th>
                {jobs.map((job) => (
                  <td key={job.id}>
                    <Ran seconds={job.ran_s ?? 0} since={job.running_since} />
                  </td>
                ))}
              </tr>
              <tr>
                <th scope="row">Step</th>
                {jobs.map((job) => (
                  <td key={job.id} className="num">
                    {number((job.progress ?? {})["step"])}
                  </td>
                ))}
              </tr>
              {metricNames.map((name) => (
                <tr key={name}>
                  <th scope="row">{name}</th>
                  {jobs.map((job) => (
                    <td key={job.id} className="num">
                      {number(metricsOf(job)[name])}
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </Card>
      <Charts jobs={jobs} />
      <Card
        title="Spec and code"
        aside={
          <label className="row">
            <input type="checkbox" className="check" checked={isAll} onChange={(event) => setAll(event.target.checked)} /> also
            what is equal
          </label>
        }
        flush
      >
        {shown.length === 0 ? (
          <Empty icon={GitCompareArrows} title="The specs are equal" />
        ) : (
          <div className="table-box">
            <table className="table compare">
              <thead>
                <tr>
                  <th>Field</th>
                  {jobs.map((job) => (
                    <th key={job.id}>{job.name}</th>
                  ))}
                </tr>
              </thead>
              <tbody>
                {shown.map((row) => (
                  <tr key={row.path} className={row.isDifferent ? "differs" : ""}>
                    <th scope="row" className="mono">
                      {row.path}
                    </th>
                    {row.values.map((value, i) => (
                      <td key={jobs[i]?.id ?? i} className="mono wrap">
                        {value ?? <span className="dimmer">–</span>}
                      </td>
                    ))}
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
      </Card>
    </>
  );
}

function metricsOf(job: JobDetail): Record<string, unknown> {
  return ((job.progress ?? {})["metrics"] ?? {}) as Record<string, unknown>;
}

/** The metrics that any of the jobs has, all jobs in one chart. */
function Charts({ jobs }: { jobs: readonly JobDetail[] }) {
  const [look, setLook] = useState<Look>({ by: "step", isLog: false, smoothing: 0 });
  const ids = jobs.map((job) => job.id);
  const queries = useQueries({ queries: ids.map((id) => metricNamesQuery(id, false)) });
  const names = [...new Set(queries.flatMap((query) => query.data ?? []))].sort();
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
  if (names.length === 0) return null;
  return (
    <section className="stack">
      <div className="row wrapping">
        <h2 className="grow">Metrics</h2>
        <LookControls look={look} set={setLook} />
        <TensorBoard jobs={ids} />
      </div>
      <div className="metrics">
        {names.map((name) => (
          <MetricCard key={name} jobs={ids} name={name} label={label} {...look} />
        ))}
      </div>
    </section>
  );
}
