import { useMemo, useState } from "react";
import { Card } from "~/components/parts";
import { Plot } from "~/components/charts/plot";
import { paretoFront, type Goal, type TrialRow, valueOf } from "~/api/trialRows";
import { numberAxis, rangeOf } from "~/components/charts/axis";

interface FrontProps {
  metrics: readonly { name: string; goal: Goal }[];
  rows: readonly TrialRow[];
  pick: (trial: number) => void;
  describe: (trial: number) => string;
}

/** Scatter plot of two metrics with the Pareto front. */
export function Front({ metrics, rows, pick, describe }: FrontProps) {
  const [[across, up], setAxes] = useState<[number, number]>([0, 1]);
  const [x, y] = [metrics[across], metrics[up]];
  const plot = useMemo(() => {
    if (x === undefined || y === undefined) return null;
    const known = rows.flatMap((row) => {
      const [left, right] = [valueOf(row, x.name), valueOf(row, y.name)];
      return left === null || right === null ? [] : [{ number: row.number, x: left, y: right }];
    });
    const best = paretoFront(known, [x.goal, y.goal]);
    const [wide, high] = [rangeOf(known.map((point) => point.x)), rangeOf(known.map((point) => point.y))];
    // The front is a step function, followed from the good end of `x`.
    const from = x.goal === "minimize" ? 1 : -1;
    const edge = known.filter((point) => best.has(point.number)).sort((a, b) => from * (a.x - b.x));
    return {
      count: best.size,
      x: numberAxis(wide?.low ?? 0, wide?.high ?? 1),
      y: numberAxis(high?.low ?? 0, high?.high ?? 1),
      points: known.map((point) => ({
        ...point,
        hue: best.has(point.number) ? 2 : 0,
        isHollow: !best.has(point.number),
      })),
      lines: [{ points: edge.map((point) => [point.x, point.y] as const), hue: 2, isFaint: true, isStepped: true }],
    };
  }, [rows, x, y]);
  if (plot === null || x === undefined || y === undefined) return null;
  const choose = (label: string, now: number, set: (to: number) => void) => (
    <select className="input auto" aria-label={label} value={now} onChange={(event) => set(Number(event.target.value))}>
      {metrics.map((metric, i) => (
        <option key={metric.name} value={i}>
          {metric.name}
        </option>
      ))}
    </select>
  );
  return (
    <Card
      title="Pareto front"
      flush
      aside={
        metrics.length > 2 && (
          <span className="row">
            {choose("X axis", across, (to) => setAxes([to, up]))} {choose("Y axis", up, (to) => setAxes([across, to]))}
          </span>
        )
      }
    >
      {plot.points.length === 0 ? (
        <div className="body dim">No results yet.</div>
      ) : (
        <>
          <div className="plot-body">
            <Plot
              label={`${y.name} over ${x.name} of ${plot.points.length} trials; ${plot.count} are on the front`}
              height={280}
              x={plot.x}
              y={plot.y}
              xName={`${x.name} (${x.goal}: better ${x.goal === "minimize" ? "←" : "→"})`}
              yName={`${y.name} (${y.goal}: better ${y.goal === "minimize" ? "↓" : "↑"})`}
              points={plot.points}
              lines={plot.lines}
              describe={describe}
              pick={pick}
            />
          </div>
          <div className="keys">
            <span className="key-2">
              <i aria-hidden="true" /> on the front
            </span>
            {plot.count < plot.points.length && (
              <span className="key-0">
                <i className="ring" aria-hidden="true" /> dominated
              </span>
            )}
          </div>
        </>
      )}
    </Card>
  );
}
