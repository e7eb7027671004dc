import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useMemo, useState } from "react";
import { predictionQuery } from "~/api/studies";
import type { StudyDetail } from "~/api/types";
import { Plot } from "~/components/charts/plot";
import { Card } from "~/components/parts";
import { number } from "~/lib/format";
import { bestSoFar, type Goal, type TrialRow, valueOf } from "~/api/trialRows";
import { numberAxis, rangeOf } from "~/components/charts/axis";

interface HistoryProps {
  study: StudyDetail;
  rows: readonly TrialRow[];
  results: number;
  metric: { name: string; goal: Goal };
  pick: (trial: number) => void;
  describe: (trial: number) => string;
}

/** Each trial's value in order, the best so far, and a forecast; or the regret. */
export function History({ study, rows, results, metric, pick, describe }: HistoryProps) {
  const [isRegret, setRegret] = useState(false);
  const { data: ahead } = useQuery(predictionQuery(study.id, undefined, results));
  const plot = useMemo(() => {
    const grew = bestSoFar(rows, metric.name, metric.goal);
    const best = grew.y.at(-1);
    const last = rows.at(-1)?.number ?? 1;
    const points = (ahead?.points ?? []).map((point) => ({ ...point, x: last + point.more }));
    const values = rows.map((row) => valueOf(row, metric.name)).filter((value) => value !== null);
    if (isRegret && best !== undefined) {
      const regret = grew.y.map((value) => Math.abs(value - best));
      const above = regret.filter((value) => value > 0);
      const high = Math.max(...above, Number.MIN_VALUE);
      const low = Math.min(...above, high);
      const isLog = high / low > 20;
      return {
        x: numberAxis(1, Math.max(2, last)),
        y: isLog ? numberAxis(low / 1.5, high * 1.5, "log") : numberAxis(0, high > Number.MIN_VALUE ? high * 1.05 : 1),
        // Improvements only. A logarithmic axis has no zero, so the line ends there.
        points: grew.x.flatMap((x, i) =>
          grew.y[i] === grew.y[i - 1] ? [] : [{ number: x, x, y: regret[i] ?? null, hue: 1 }],
        ),
        lines: [{ points: grew.x.map((x, i) => [x, regret[i]] as const), hue: 1, isStepped: true }],
        bands: [],
      };
    }
    const range = rangeOf([
      ...values,
      ...(points.length > 0 ? points.flatMap((point) => [point.low, point.high]) : []),
    ]);
    return {
      x: numberAxis(0, Math.max(2, points.at(-1)?.x ?? last) * 1.01),
      y: numberAxis(range?.low ?? 0, range?.high ?? 1),
      points: rows.map((row) => ({
        number: row.number,
        x: row.number,
        y: valueOf(row, metric.name),
        hue: row.state === "stopped" ? 1 : 0,
        isHollow: row.state === "stopped",
      })),
      lines: [
        { points: grew.x.map((x, i) => [x, grew.y[i]] as const), hue: 2, isStepped: true },
        ...(points.length > 0 && best !== undefined
          ? [
              {
                points: [[last, best] as const, ...points.map((point) => [point.x, point.likely] as const)],
                hue: 3,
                isDashed: true,
              },
            ]
          : []),
      ],
      bands:
        points.length > 0 && best !== undefined
          ? [
              {
                x: [last, ...points.map((point) => point.x)],
                low: [best, ...points.map((point) => point.low)],
                high: [best, ...points.map((point) => point.high)],
                hue: 3,
              },
            ]
          : [],
    };
  }, [rows, metric.name, metric.goal, ahead, isRegret]);
  const best = study.best;
  const bestText = best ? `the best is ${number(best.result?.[metric.name])}, of trial ${best.number}` : "none yet";
  const failed = study.trials?.["failed"] ?? 0;
  const has = (state: string) => rows.some((row) => row.state === state);
  return (
    <Card
      title={isRegret ? "Regret" : metric.name}
      flush
      aside={
        <select
          className="input auto"
          aria-label="Chart"
          value={isRegret ? "regret" : "value"}
          onChange={(event) => setRegret(event.target.value === "regret")}
        >
          <option value="value">values and best so far</option>
          <option value="regret">regret</option>
        </select>
      }
    >
      {results === 0 ? (
        <div className="body">
          <p className="dim">
            {rows.length === 0 ? "No trials yet." : failed === 0 ? "No results yet." : "No results. "}
            {failed > 0 && <FailedLink study={study.id} label={`${failed} failed`} />}
          </p>
        </div>
      ) : (
        <>
          <div className="plot-body">
            <Plot
              label={`${metric.name} of ${results} trials in order; ${bestText}`}
              height={280}
              {...plot}
              describe={describe}
              pick={pick}
            />
          </div>
          <div className="keys">
            {isRegret ? (
              <span className="key-1">
                <i className="stroke" aria-hidden="true" /> best so far minus best overall
              </span>
            ) : (
              <>
                <span className="key-0">
                  <i aria-hidden="true" /> a trial
                </span>
                {has("stopped") && (
                  <span className="key-1">
                    <i className="ring" aria-hidden="true" /> stopped early
                  </span>
                )}
                <span className="key-2">
                  <i className="stroke" aria-hidden="true" /> best so far
                </span>
                {(ahead?.points ?? []).length > 0 && (
                  <span className="key-3">
                    <i className="band" aria-hidden="true" /> forecast, 80 % interval
                  </span>
                )}
                {failed > 0 && <FailedLink study={study.id} label={`${failed} failed, not shown`} />}
              </>
            )}
          </div>
        </>
      )}
    </Card>
  );
}

function FailedLink({ study, label }: { study: string; label: string }) {
  return (
    <Link to="/studies/$study/trials" params={{ study }} search={{ state: "failed" }} className="inline-link">
      {label}
    </Link>
  );
}
