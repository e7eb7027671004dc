import { useQueries, useQuery } from "@tanstack/react-query";
import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { GitCompareArrows } from "lucide-react";
import { useState } from "react";
import { versionQuery, versionsQuery } from "~/api/models";
import type { ModelVersionDetail } from "~/api/types";
import { ShowEqualToggle, Skeleton, Card, Empty, Failure, TableBox } from "~/components/parts";
import { type FieldRow, fieldDiff } from "~/lib/fieldDiff";
import { splitList, toggled } from "~/lib/filters";
import { bytes, number } from "~/lib/format";
import { FilterMenu } from "~/pages/jobs/filterMenu";
import { StageLabel } from "./parts";

const route = getRouteApi("/shell/models/$project/$model/compare");
const MOST = 8;

/** Compares two to eight versions: metrics, parameters and job specs. */
export function CompareVersions() {
  const { project, model } = route.useParams();
  const { versions: text } = route.useSearch();
  const navigate = useNavigate({ from: "/models/$project/$model/compare" });
  const { data: all, isPending } = useQuery(versionsQuery(project, model));
  const numbers = (all?.items ?? []).map((version) => String(version.version));
  // By default the two newest versions.
  const chosen = (text === undefined ? numbers.slice(0, 2).reverse() : splitList(text)).slice(0, MOST);
  const queries = useQueries({ queries: chosen.map((version) => versionQuery(project, model, version)) });
  const found = queries.flatMap((query) => (query.data ? [query.data] : []));
  const failed = queries.find((query) => query.error !== null && query.data === undefined);
  const choose = (version: string) => {
    const next = splitList(toggled(chosen.join(","), version)).sort((a, b) => Number(a) - Number(b));
    void navigate({ search: { versions: next.slice(-MOST).join(",") || "0" }, replace: true });
  };
  return (
    <div className="page-body">
      <div className="row wrapping">
        <h2 className="grow">Compare versions</h2>
        <FilterMenu label="Versions" items={numbers} chosen={chosen} toggle={choose} />
      </div>
      {failed && <Failure error={failed.error} retry={() => void failed.refetch()} />}
      {isPending || (found.length < chosen.length && !failed) ? (
        <Skeleton rows={8} height={30} />
      ) : found.length < 2 ? (
        <section className="card">
          <Empty icon={GitCompareArrows} title="Choose at least two versions" />
        </section>
      ) : (
        <Comparison versions={found} />
      )}
    </div>
  );
}

function Comparison({ versions }: { versions: readonly ModelVersionDetail[] }) {
  const lineages = versions.map((version) => version.lineage);
  return (
    <>
      <Card title="Versions" flush>
        <Side versions={versions} label="Versions" rows={facts(versions)} />
      </Card>
      <Differences
        title="Metrics"
        versions={versions}
        objects={versions.map((version) => shown(version.metrics ?? {}))}
      />
      <Differences
        title="Parameters"
        versions={versions}
        objects={lineages.map((lineage) => lineage?.parameters ?? {})}
      />
      <Differences
        title="Jobs"
        versions={versions}
        objects={lineages.map((lineage) => ({ code: lineage?.code, data: lineage?.data, ...(lineage?.spec ?? {}) }))}
      />
    </>
  );
}

const shown = (metrics: Record<string, number>): Record<string, string> =>
  Object.fromEntries(Object.entries(metrics).map(([name, value]) => [name, number(value)]));

interface Line {
  head: string;
  cells: React.ReactNode[];
  isDifferent?: boolean;
}

function facts(versions: readonly ModelVersionDetail[]): Line[] {
  return [
    { head: "Stage", cells: versions.map((version) => <StageLabel key={version.id} stage={version.stage} />) },
    {
      head: "Aliases",
      cells: versions.map((version) => (version.aliases ?? []).map((alias) => `@${alias}`).join(" ") || "–"),
    },
    {
      head: "Job",
      cells: versions.map((version) =>
        version.source.job ? (
          <Link key={version.id} to="/jobs/$job" params={{ job: version.source.job }} className="wrap">
            {version.lineage?.job_name || version.source.job}
          </Link>
        ) : (
          "–"
        ),
      ),
    },
    { head: "Format", cells: versions.map((version) => version.format || "–") },
    { head: "Size", cells: versions.map((version) => bytes(version.size_bytes)) },
    {
      head: "Content",
      cells: versions.map((version) => (
        <span key={version.id} className="mono" title={version.digest ?? ""}>
          {version.digest?.replace(/^sha256:/, "").slice(0, 12) ?? "–"}
        </span>
      )),
      isDifferent: new Set(versions.map((version) => version.digest)).size > 1,
    },
  ];
}

interface DifferencesProps {
  title: string;
  versions: readonly ModelVersionDetail[];
  objects: readonly object[];
}

function Differences({ title, versions, objects }: DifferencesProps) {
  const rows = fieldDiff(objects);
  // All metrics and parameters are of interest; of specs only the differences.
  const isShort = title !== "Jobs";
  const [isAll, setAll] = useState(isShort);
  const visible = isAll ? rows : rows.filter((row) => row.isDifferent);
  return (
    <Card title={title} aside={rows.length > 0 && <ShowEqualToggle isAll={isAll} set={setAll} />} flush>
      {visible.length === 0 ? (
        <p className="dim compare-none">
          {rows.length === 0 ? `No ${title.toLowerCase()}` : `${title} are identical`}.
        </p>
      ) : (
        <Side versions={versions} label={title} rows={visible.map(toLine)} />
      )}
    </Card>
  );
}

const toLine = (row: FieldRow): Line => ({
  head: row.path,
  cells: row.values.map((value) => value ?? "–"),
  isDifferent: row.isDifferent,
});

function Side({
  versions,
  label,
  rows,
}: {
  versions: readonly ModelVersionDetail[];
  label: string;
  rows: readonly Line[];
}) {
  return (
    <TableBox label={label}>
      <table className="table compare" style={{ minWidth: 130 + versions.length * 150 }}>
        <thead>
          <tr>
            <th>
              <span className="only-read">What</span>
            </th>
            {versions.map(({ id, project, model, version }) => (
              <th key={id}>
                <Link
                  to="/models/$project/$model/versions/$version"
                  params={{ project, model, version: String(version) }}
                >
                  v{version}
                </Link>
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.head} className={row.isDifferent ? "differs" : ""}>
              <th scope="row" className="wrap">
                {row.head}
              </th>
              {row.cells.map((cell, i) => (
                <td key={versions[i]?.id ?? i} className="num wrap">
                  {cell}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </TableBox>
  );
}
