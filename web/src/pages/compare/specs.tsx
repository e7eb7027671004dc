import { Equal } from "lucide-react";
import { useState } from "react";
import type { JobDetail } from "~/api/types";
import { ShowEqualToggle, Card, Empty, TableBox } from "~/components/parts";
import { fieldDiff, type FieldRow } from "~/lib/fieldDiff";

/** Where the specs differ, field by field. */
export function Specs({ jobs }: { jobs: readonly JobDetail[] }) {
  const [isAll, setAll] = useState(false);
  // The digest means nothing to people: the code is compared below, file by file.
  const rows = fieldDiff(jobs.map((job) => job.spec)).filter((row) => row.path !== "code");
  const shown = isAll ? rows : rows.filter((row) => row.isDifferent);
  return (
    <Card title="Specs" aside={<ShowEqualToggle isAll={isAll} set={setAll} />} flush>
      {shown.length === 0 ? (
        <Empty icon={Equal} title="The specs are identical" />
      ) : (
        <Fields label="Specs" head="Field" jobs={jobs} rows={shown} />
      )}
    </Card>
  );
}

/** Parameters of trials. A spec has them as one row of arguments, or not at all where the script reads them itself. */
export function Parameters({ jobs }: { jobs: readonly JobDetail[] }) {
  const rows = fieldDiff(jobs.map((job) => job.trial?.parameters ?? {}));
  if (rows.length === 0) return null;
  return (
    <Card title="Parameters" flush>
      <Fields label="Parameters" head="Parameter" jobs={jobs} rows={rows} />
    </Card>
  );
}

interface FieldsProps {
  label: string;
  head: string;
  jobs: readonly JobDetail[];
  rows: readonly FieldRow[];
}

function Fields({ label, head, jobs, rows }: FieldsProps) {
  return (
    <TableBox label={label}>
      <table className="table compare" style={{ minWidth: 130 + jobs.length * 170 }}>
        <thead>
          <tr>
            <th>{head}</th>
            {jobs.map((job) => (
              <th key={job.id} className="wrap">
                {job.name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.path} className={row.isDifferent ? "differs" : ""}>
              <th scope="row" className="mono wrap">
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
    </TableBox>
  );
}
