import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import { ChartColumn, Download } from "lucide-react";
import { useId } from "react";
import { usageQuery } from "~/api/usage";
import type { UsageReport } from "~/api/types";
import { DataTable } from "~/components/dataTable";
import { Failure, PageHead, Skeleton } from "~/components/parts";
import { ProjectFilter } from "~/pages/jobs/filterMenu";
import { Budgets } from "./budgets";
import { UsageChart } from "./chart";
import { amount, GROUPINGS, hours, TIMES, type Time, windowOf } from "./measures";
import { Prices } from "./prices";

const route = getRouteApi("/shell/usage");

/** What jobs used and what it cost, with budgets and prices. */
export function UsagePage() {
  const search = route.useSearch();
  const navigate = route.useNavigate();
  const time = (search.time ?? "month") as Time;
  const groupBy = search.by ?? "project";
  const { interval, ...window_ } = windowOf(time, new Date());
  const query = {
    ...window_,
    group_by: groupBy,
    ...(search.project ? { project: search.project } : {}),
  };
  const report = useQuery({ ...usageQuery({ ...query, interval }), placeholderData: keepPreviousData });
  const filter = (changes: Record<string, string | undefined>) =>
    void navigate({ search: { ...search, ...changes }, replace: true });
  return (
    <div className="page-body">
      <PageHead
        title="Usage"
        about="What jobs held, from the placing of the gang to its end, and what it cost. Days and months are UTC."
      >
        <a className="button" href={`/api/v1/usage.csv?${new URLSearchParams(query).toString()}`} download>
          <Download size={15} aria-hidden="true" /> CSV
        </a>
      </PageHead>
      <div className="filters">
        <Choice label="Time" items={TIMES} chosen={time} choose={(value) => filter({ time: value })} />
        <Choice label="By" items={GROUPINGS} chosen={groupBy} choose={(value) => filter({ by: value })} />
        <ProjectFilter chosen={search.project} set={(project) => filter({ project })} />
      </div>
      {report.isPending && <Skeleton rows={6} height={30} />}
      {report.error && !report.data && <Failure error={report.error} retry={() => void report.refetch()} />}
      {report.data && <UsageChart report={report.data} />}
      <Groups query={report} groupBy={groupBy} />
      <Budgets />
      <Prices />
    </div>
  );
}

interface ChoiceProps {
  label: string;
  items: Readonly<Record<string, string>>;
  chosen: string;
  choose: (value: string) => void;
}

function Choice({ label, items, chosen, choose }: ChoiceProps) {
  const id = useId();
  return (
    <span className="row">
      <label className="dim small" htmlFor={id}>
        {label}
      </label>
      <select id={id} className="input" value={chosen} onChange={(event) => choose(event.target.value)}>
        {Object.entries(items).map(([value, name]) => (
          <option key={value} value={value}>
            {name}
          </option>
        ))}
      </select>
    </span>
  );
}

interface Row {
  key: string;
  id?: string | null | undefined;
  figures: UsageReport["total"];
}

function Groups({ query, groupBy }: { query: ReturnType<typeof useQuery<UsageReport>>; groupBy: string }) {
  const report = query.data;
  const rows: Row[] | undefined = report && [
    ...report.groups.map((group) => ({ key: group.key || "(none)", id: group.id, figures: group })),
    ...(report.others ? [{ key: "(others)", figures: report.others }] : []),
    ...(report.groups.length > 1 ? [{ key: "Total", figures: report.total }] : []),
  ];
  const currency = report?.currency ?? "";
  return (
    <DataTable<Row>
      label="Usage"
      query={{ ...query, data: rows }}
      rowKey={(row) => row.id ?? row.key}
      empty={{ icon: ChartColumn, title: "No usage", description: "No job held resources in this time." }}
      columns={[
        {
          head: GROUPINGS[groupBy as keyof typeof GROUPINGS] ?? groupBy,
          cell: (row) => <Name row={row} by={groupBy} />,
        },
        { head: "Jobs", isRight: true, cell: (row) => row.figures.jobs.toLocaleString() },
        { head: "GPU-hours", isRight: true, cell: (row) => hours(row.figures.gpu_hours) },
        { head: "Core-hours", isRight: true, cell: (row) => hours(row.figures.cpu_hours) },
        { head: "GiB-hours", isRight: true, cell: (row) => hours(row.figures.memory_gib_hours) },
        { head: "Idle GPU-hours", isRight: true, cell: (row) => hours(row.figures.idle_gpu_hours ?? 0) },
        { head: "Lost GPU-hours", isRight: true, cell: (row) => hours(row.figures.lost_gpu_hours) },
        { head: `Cost (${currency})`, isRight: true, cell: (row) => <strong>{amount(row.figures.cost)}</strong> },
      ]}
    />
  );
}

function Name({ row, by }: { row: Row; by: string }) {
  if (!row.id) return row.key;
  return by === "job" ? (
    <Link to="/jobs/$job" params={{ job: row.id }}>
      {row.key}
    </Link>
  ) : (
    <Link to="/studies/$study" params={{ study: row.id }}>
      {row.key}
    </Link>
  );
}
