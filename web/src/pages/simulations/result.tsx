import { useMemo } from "react";
import type { SimulationReport, SimulationResult } from "~/api/types";
import { Chart } from "~/components/charts/lineChart";
import { Card, Sentence, TableBox } from "~/components/parts";
import { LocalTime } from "~/components/time";
import { pluralize, duration, number } from "~/lib/format";
import { differenceOf, type Figure, FIGURES, overTime } from "./comparison";

/** The figures side by side, a summary, and the use of the cluster over time. */
export function Result({ found, what }: { found: SimulationResult; what: string }) {
  return (
    <>
      <Card title={what || "Result"}>
        <div className="stack">
          <ul className="stack tight">
            {(found.sentences ?? []).map((sentence) => (
              <li key={sentence}>
                <Sentence text={sentence} />
              </li>
            ))}
          </ul>
          <p className="dim small">
            {pluralize(found.jobs, "job")} finished between <LocalTime at={found.since} /> and{" "}
            <LocalTime at={found.until} />. Both columns are simulated from an empty cluster: with the current nodes and
            settings, and with the changes.
          </p>
          <TableBox label="Figures">
            <table className="table figures">
              <thead>
                <tr>
                  <th scope="col">Figure</th>
                  <th scope="col" className="right">
                    Current
                  </th>
                  <th scope="col" className="right">
                    Changed
                  </th>
                  <th scope="col" className="right">
                    Difference
                  </th>
                </tr>
              </thead>
              <tbody>
                {FIGURES.filter(({ isShown }) => isShown?.(found) ?? true).map((figure) => (
                  <Row key={figure.label} figure={figure} found={found} />
                ))}
              </tbody>
            </table>
          </TableBox>
        </div>
      </Card>
      <div className="simulated">
        <OverTime title="GPUs in use" found={found} of={(report) => report.gpus_over_time} isShare />
        <OverTime title="CPUs in use" found={found} of={(report) => report.cpus_over_time} isShare />
        <OverTime title="Waiting jobs" found={found} of={(report) => report.waiting_over_time} />
      </div>
    </>
  );
}

function Row({ figure, found }: { figure: Figure; found: SimulationResult }) {
  const [before, after] = [figure.of(found.before), figure.of(found.after)];
  const { text: text, tone } = differenceOf(figure, before, after);
  const formatValue = (value: number | null | undefined) =>
    value === null || value === undefined
      ? "–"
      : figure.kind === "time"
        ? value === 0
          ? "0 s"
          : duration(value)
        : figure.kind === "share"
          ? percent(value)
          : number(value);
  return (
    <tr>
      <th scope="row">{figure.label}</th>
      <td className="right num nowrap">{formatValue(before)}</td>
      <td className="right num nowrap">{formatValue(after)}</td>
      <td className={`right num nowrap ${tone}`}>{text}</td>
    </tr>
  );
}

const percent = (share: number): string => `${(100 * share).toFixed(1).replace(/\.0$/, "")} %`;
const percentOf = (value: unknown): string => (typeof value === "number" ? percent(value) : "–");

interface OverTimeProps {
  title: string;
  found: SimulationResult;
  of: (report: SimulationReport) => readonly (readonly unknown[])[] | undefined;
  isShare?: boolean;
}

function OverTime({ title, found, of, isShare = false }: OverTimeProps) {
  const lines = useMemo(
    () => [overTime("current", of(found.before)), overTime("changed", of(found.after))],
    [found, of],
  );
  if (lines.every((line) => line.x.length === 0)) return null;
  return (
    <Card
      title={title}
      aside={
        <span className="row legend small dim" aria-hidden="true">
          <i className="line-0" /> current <i className="line-1" /> changed
        </span>
      }
    >
      <Chart
        lines={lines}
        by="elapsed"
        isLog={false}
        smoothing={0}
        leastTop={isShare ? 0.02 : 1}
        label={`${title} over time`}
        unit={isShare ? percentOf : number}
      />
    </Card>
  );
}
