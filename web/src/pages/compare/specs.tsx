import { Equal } from "lucide-react";
import { useState } from "react";
import type { JobDetail } from "~/api/types";
import { AlsoEqual, Card, Empty, TableBox } from "~/components/parts";
import { difference } from "~/lib/difference";

/** Where the specs differ, field by field. */
export function Specs({ jobs }: { jobs: readonly JobDetail[] }) {
  const [isAll, setAll] = useState(false);
  // A digest says nothing to people: the code stands below, file by file.
  const rows = difference(jobs.map((job) => job.spec)).filter((row) => row.path !== "code");
  const shown = isAll ? rows : rows.filter((row) => row.isDifferent);
  return (
    <Card title="Specs" aside={<AlsoEqual isAll={isAll} set={setAll} />} flush>
      {shown.length === 0 ? (
        <Empty icon={Equal} title="The specs are equal" />
      ) : (
        <TableBox label="Specs">
          <table className="table compare" style={{ minWidth: 130 + jobs.length * 170 }}>
            <thead>
              <tr>
                <th>Field</th>
                {jobs.map((job) => (
                  <th key={job.id} className="wrap">
                    {job.name}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {shown.map((row) => (
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
      )}
    </Card>
  );
}
