import { useQuery } from "@tanstack/react-query";
import { ChartLine } from "lucide-react";
import { useMemo, useState } from "react";
import { curvesQuery, isStudyOver } from "~/api/studies";
import { Skeleton, Card, Empty, Failure } from "~/components/parts";
import { Plot } from "~/components/charts/plot";
import { pluralize } from "~/lib/format";
import { numberAxis, rangeOf } from "~/components/charts/axis";
import { rankScale } from "./surface";
import { useStudy } from "./useStudy";

/** Learning curves of trials, with those stopped early. */
export function Curves() {
  const { id, study, metrics, pick, describe } = useStudy();
  const [isLog, setLog] = useState(false);
  const { data, error, isPending, refetch } = useQuery(curvesQuery(id, isStudyOver(study?.state)));
  const goal = metrics[0]?.goal ?? "minimize";
  const plot = useMemo(() => {
    const curves = data?.curves ?? [];
    const ends = curves.map((curve) => curve.values.at(-1) ?? 0);
    const rank = rankScale(ends, goal === "minimize");
    const steps = curves.flatMap((curve) => curve.steps);
    const [first, last] = [Math.min(...steps), Math.max(...steps)];
    const range = rangeOf(curves.flatMap((curve) => curve.values));
    return {
      x: isLog && first > 0 ? numberAxis(first, last, "log") : numberAxis(first, last),
      y: numberAxis(range?.low ?? 0, range?.high ?? 1),
      lines: curves.map((curve, i) => ({
        number: curve.number,
        points: curve.steps.map((step, at) => [step, curve.values[at]] as const),
        hue: { good: rank(ends[i] ?? 0) },
        isFaint: true,
        isDashed: curve.state === "stopped",
      })),
      points: curves.flatMap((curve) =>
        curve.state === "stopped" && curve.steps.length > 0
          ? [{ number: curve.number, x: curve.steps.at(-1), y: curve.values.at(-1), hue: 1 }]
          : [],
      ),
    };
  }, [data, goal, isLog]);
  if (study === undefined) return null;
  return (
    <div className="page-body">
      {error !== null && !data && <Failure error={error} retry={() => void refetch()} />}
      {isPending ? (
        <Skeleton rows={6} height={30} />
      ) : (data?.curves.length ?? 0) === 0 ? (
        <Empty icon={ChartLine} title="No intermediate results">
          <p>
            {study.spec.template
              ? `Report ${data?.metric ?? "the metric"} at several steps of a trial for curves and early stopping.`
              : "An ask-and-tell program reports only final values."}
          </p>
        </Empty>
      ) : (
        <Card
          title={`${data?.metric} over steps`}
          flush
          aside={
            <label className="row small">
              <input
                type="checkbox"
                className="check"
                checked={isLog}
                onChange={(event) => setLog(event.target.checked)}
              />{" "}
              log scale
            </label>
          }
        >
          <div className="plot-body">
            <Plot
              label={[
                `Curves of ${pluralize(data?.curves.length ?? 0, "trial")}`,
                ...(plot.points.length > 0 ? [`${plot.points.length} of them stopped early`] : []),
              ].join(", ")}
              height={420}
              x={plot.x}
              y={plot.y}
              lines={plot.lines}
              points={plot.points}
              describe={describe}
              pick={pick}
            />
          </div>
          <div className="keys">
            <span>
              worst <span className="ramp" aria-hidden="true" /> best
            </span>
            {plot.points.length > 0 && (
              <span className="key-1">
                <i aria-hidden="true" /> stopped early
              </span>
            )}
            {(data?.total ?? 0) > (data?.curves.length ?? 0) && (
              <span>
                {data?.curves.length} of {pluralize(data?.total ?? 0, "curve")}: running, best and newest
              </span>
            )}
          </div>
        </Card>
      )}
    </div>
  );
}
