import { SlidersHorizontal } from "lucide-react";
import { useMemo, useState } from "react";
import type { Parameter } from "~/api/types";
import { Skeleton, Card, Empty, Failure } from "~/components/parts";
import { Plot } from "~/components/charts/plot";
import { pluralize } from "~/lib/format";
import { rankScale, interpolateSurface } from "./surface";
import { type Goal, sampleTrials, type TrialRow, valueOf } from "~/api/trialRows";
import { numberAxis, parameterAxis, rangeOf } from "~/components/charts/axis";
import { Parallel } from "./parallel";
import { useStudy } from "./useStudy";

const SLICED = 3_000; // trials in one slice
const FIELD = 600; // trials in a contour plot
const SIDE = 36; // cells of a contour each way

/** The metric by parameters: all in parallel coordinates, each alone, and pairs as a contour plot. */
export function Parameters() {
  const { study, metrics, rows, results, isPending, error, refetch, pick, describe } = useStudy();
  const [chosen, setChosen] = useState("");
  const metric = metrics.find((each) => each.name === chosen) ?? metrics[0];
  if (study === undefined || metric === undefined) return null;
  const { parameters } = study.spec;
  const props = { rows, metric, parameters, pick, describe };
  return (
    <div className="page-body">
      {error !== null && rows.length === 0 && <Failure error={error} retry={() => void refetch()} />}
      {metrics.length > 1 && (
        <label className="row">
          <span className="dim">Metric</span>
          <select className="input auto" value={metric.name} onChange={(event) => setChosen(event.target.value)}>
            {metrics.map((each) => (
              <option key={each.name}>{each.name}</option>
            ))}
          </select>
        </label>
      )}
      {isPending ? (
        <Skeleton rows={8} height={30} />
      ) : results === 0 ? (
        <Empty icon={SlidersHorizontal} title="No results yet">
          <p>Charts appear once trials have ended.</p>
        </Empty>
      ) : (
        <div className="stack large">
          <Parallel {...props} />
          <Slices {...props} />
          {Object.keys(parameters).length > 1 && <Contour {...props} />}
        </div>
      )}
    </div>
  );
}

export interface ChartProps {
  rows: readonly TrialRow[];
  metric: { name: string; goal: Goal };
  parameters: Record<string, Parameter>;
  pick: (trial: number) => void;
  describe: (trial: number) => string;
}

function Slices({ rows, metric, parameters, pick, describe }: ChartProps) {
  const shown = useMemo(() => {
    const known = rows.filter((row) => valueOf(row, metric.name) !== null);
    const sample = sampleTrials(known, metric.name, metric.goal, SLICED);
    const range = rangeOf(known.map((row) => valueOf(row, metric.name) ?? 0));
    const y = numberAxis(range?.low ?? 0, range?.high ?? 1);
    return Object.entries(parameters).map(([name, parameter]) => {
      const having = sample.filter((row) => row.parameters[name] !== undefined);
      return {
        name,
        x: parameterAxis(parameter),
        y,
        points: having.map((row) => ({
          number: row.number,
          x: row.parameters[name],
          y: valueOf(row, metric.name),
          hue: 0,
        })),
        count: known.reduce((sum, row) => sum + (row.parameters[name] === undefined ? 0 : 1), 0),
        isPart: parameter.when !== undefined && Object.keys(parameter.when).length > 0,
      };
    });
  }, [rows, metric.name, metric.goal, parameters]);
  return (
    <Card title={`${metric.name} by each parameter`} flush>
      <div className="slices">
        {shown.map((slice) => (
          <div key={slice.name}>
            <h3>
              {slice.name} {slice.x.isLog && <span className="dimmer small">log</span>}
              {slice.isPart && <span className="dimmer small"> in {pluralize(slice.count, "trial")}</span>}
            </h3>
            <Plot
              label={`${metric.name} over ${slice.name}, of ${slice.points.length} trials`}
              height={180}
              isSmall
              x={slice.x}
              y={slice.y}
              points={slice.points}
              describe={describe}
              pick={pick}
            />
          </div>
        ))}
      </div>
    </Card>
  );
}

function Contour({ rows, metric, parameters, pick, describe }: ChartProps) {
  const names = Object.keys(parameters);
  const [chosen, setChosen] = useState<[string, string]>(["", ""]);
  const across = names.includes(chosen[0]) ? chosen[0] : (names[0] ?? "");
  const up =
    names.includes(chosen[1]) && chosen[1] !== across ? chosen[1] : (names.find((name) => name !== across) ?? "");
  const plot = useMemo(() => {
    const [first, second] = [parameters[across], parameters[up]];
    if (first === undefined || second === undefined) return null;
    const [x, y] = [parameterAxis(first), parameterAxis(second)];
    const known = rows.filter((row) => valueOf(row, metric.name) !== null);
    const good = rankScale(
      known.map((row) => valueOf(row, metric.name) ?? 0),
      metric.goal === "minimize",
    );
    const having = known.filter(
      (row) => x.position(row.parameters[across]) !== null && y.position(row.parameters[up]) !== null,
    );
    const sample = sampleTrials(having, metric.name, metric.goal, FIELD);
    const cells = interpolateSurface(
      sample.map((row) => ({
        x: x.position(row.parameters[across]) ?? 0,
        y: y.position(row.parameters[up]) ?? 0,
        value: good(valueOf(row, metric.name) ?? 0),
      })),
      SIDE,
    );
    const points = sample.map((row) => ({
      number: row.number,
      x: row.parameters[across],
      y: row.parameters[up],
      hue: 0,
    }));
    return { x, y, field: { side: SIDE, cells }, points };
  }, [rows, metric.name, metric.goal, parameters, across, up]);
  const choose = (label: string, value: string, set: (name: string) => void) => (
    <select className="input auto" aria-label={label} value={value} onChange={(event) => set(event.target.value)}>
      {names.map((name) => (
        <option key={name}>{name}</option>
      ))}
    </select>
  );
  if (plot === null) return null;
  return (
    <Card
      title={`${metric.name} by two parameters`}
      flush
      aside={
        <span className="row wrapping">
          {choose("X axis", across, (name) => setChosen([name, name === up ? across : up]))}
          {choose("Y axis", up, (name) => setChosen([name === across ? up : across, name]))}
        </span>
      }
    >
      {plot.points.length === 0 ? (
        <div className="body dim">No trial with a result has both parameters.</div>
      ) : (
        <>
          <div className="plot-body">
            <Plot
              label={`Where ${metric.name} is good, by ${across} and ${up}, of ${plot.points.length} trials`}
              height={340}
              x={plot.x}
              y={plot.y}
              points={plot.points}
              field={plot.field}
              describe={describe}
              pick={pick}
            />
          </div>
          <div className="keys">
            <span>
              worst <span className="ramp" aria-hidden="true" /> best, by rank
            </span>
            <span>x: {across}</span>
            <span>y: {up}</span>
            <span className="dimmer">interpolated between trials</span>
          </div>
        </>
      )}
    </Card>
  );
}
