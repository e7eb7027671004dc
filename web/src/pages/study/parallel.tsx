import { type PointerEvent, useEffect, useMemo, useRef, useState } from "react";
import { Card } from "~/components/parts";
import { coloursOf } from "~/components/charts/plot";
import { PlotKeys } from "~/components/charts/plotKeys";
import { useTheme } from "~/lib/browser/theme";
import { rankScale } from "./surface";
import { sampleTrials, valueOf } from "~/api/trialRows";
import { type Axis, numberAxis, parameterAxis, rangeOf } from "~/components/charts/axis";
import { useWidth } from "~/lib/browser/width";
import type { ChartProps } from "./parameters";

const LINES = 1_500; // trials at most: more would be unreadable
const HEIGHT = 300;
const AXIS_WIDTH = 120; // px per axis; many parameters scroll
const [TOP, BOTTOM, SIDE] = [30, 12, 56];
const NEAR = 9; // px
const FONT = "11px Inter Variable, sans-serif";

interface TrialLine {
  number: number;
  /** On each axis; `null`: the trial has no such parameter. */
  positions: readonly (number | null)[];
  good: number;
}

/** Parallel coordinates: one axis per parameter, one line per trial, the best on top. */
export function Parallel({ rows, metric, parameters, pick, describe }: ChartProps) {
  const [box, width] = useWidth<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const theme = useTheme();
  const [shown, setShown] = useState<{ number: number; left: number; top: number } | null>(null);
  const [part, setPart] = useState("all");
  const plot = useMemo(() => {
    const known = rows.filter((row) => valueOf(row, metric.name) !== null);
    const values = known.map((row) => valueOf(row, metric.name) ?? 0);
    const good = rankScale(values, metric.goal === "minimize");
    const range = rangeOf(values);
    const axes: { name: string; axis: Axis }[] = [
      ...Object.entries(parameters).map(([name, parameter]) => ({ name, axis: parameterAxis(parameter) })),
      { name: metric.name, axis: numberAxis(range?.low ?? 0, range?.high ?? 1) },
    ];
    const least = part === "all" ? 0 : part === "quarter" ? 0.75 : 0.95;
    const threads = sampleTrials(known, metric.name, metric.goal, LINES)
      .map((row): TrialLine => {
        const value = valueOf(row, metric.name) ?? 0;
        const positions = axes.map(({ name, axis }, i) =>
          axis.position(i === axes.length - 1 ? value : row.parameters[name]),
        );
        return { number: row.number, positions, good: good(value) };
      })
      .filter((thread) => thread.good >= least)
      .sort((a, b) => a.good - b.good);
    return { axes, threads, count: known.length };
  }, [rows, metric.name, metric.goal, parameters, part]);
  const order = useMemo(() => plot.threads.map((thread) => thread.number).reverse(), [plot]);
  const axisNames = plot.axes.map(({ name }) => name).join(", ");
  const label = `${plot.threads.length} of ${plot.count} trials as lines over ${axisNames}`;
  const inner = Math.max(width, plot.axes.length * AXIS_WIDTH);
  const at = (axis: number, place: number | null): [number, number] => {
    const step = (inner - 2 * SIDE) / Math.max(1, plot.axes.length - 1);
    const room = HEIGHT - TOP - BOTTOM - 14;
    const position = place === null ? -0.07 : Math.min(1, Math.max(0, place));
    return [SIDE + axis * step, TOP + (1 - position) * room];
  };

  useEffect(() => {
    const element = canvas.current;
    const context = element?.getContext("2d");
    if (!element || !context || width === 0) return;
    const ratio = window.devicePixelRatio || 1;
    element.width = Math.round(inner * ratio);
    element.height = Math.round(HEIGHT * ratio);
    context.scale(ratio, ratio);
    const colours = coloursOf(element);
    const draw = (thread: TrialLine) => {
      context.beginPath();
      for (const [i, place] of thread.positions.entries()) {
        const [x, y] = at(i, place);
        if (i === 0) context.moveTo(x, y);
        else {
          const [before] = at(i - 1, null);
          const [, from] = at(i - 1, thread.positions[i - 1] ?? null);
          const middle = (before + x) / 2;
          context.bezierCurveTo(middle, from, middle, y, x, y);
        }
      }
      context.strokeStyle = colours.ramp(thread.good);
      context.stroke();
    };
    context.lineWidth = 1.2;
    context.globalAlpha = Math.max(0.18, Math.min(0.8, 60 / Math.max(1, plot.threads.length)));
    for (const thread of plot.threads) {
      if (thread.good > 0.9) context.globalAlpha = Math.max(0.3, Math.min(0.85, 80 / plot.threads.length));
      draw(thread);
    }
    context.globalAlpha = 1;
    const highlighted = plot.threads.find((thread) => thread.number === shown?.number);
    if (highlighted) {
      context.lineWidth = 3;
      draw(highlighted);
    }
    context.font = FONT;
    for (const [i, { name, axis }] of plot.axes.entries()) {
      const [x, top] = at(i, 1);
      const [, bottom] = at(i, 0);
      context.strokeStyle = colours.text;
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(Math.round(x) + 0.5, top);
      context.lineTo(Math.round(x) + 0.5, bottom);
      context.stroke();
      context.fillStyle = colours.text;
      context.textAlign = "center";
      context.textBaseline = "top";
      const room = (inner - 2 * SIDE) / Math.max(1, plot.axes.length - 1) - 8;
      let title = name;
      while (title.length > 2 && context.measureText(title).width > room) title = `${title.slice(0, -2)}…`;
      context.fillText(title, x, 8);
      context.textAlign = i === plot.axes.length - 1 ? "left" : "right";
      context.textBaseline = "middle";
      for (const tick of axis.ticks) {
        if (tick.at < -0.01 || tick.at > 1.01) continue;
        const [, y] = at(i, tick.at);
        const text = tick.text.length > 9 ? `${tick.text.slice(0, 8)}…` : tick.text;
        const across = x + (i === plot.axes.length - 1 ? 6 : -6);
        // An outline keeps the text readable over the lines.
        context.strokeStyle = colours.ground;
        context.lineWidth = 4;
        context.strokeText(text, across, y);
        context.fillText(text, across, y);
      }
    }
    void theme;
  });

  const find = (event: PointerEvent<HTMLCanvasElement>) => {
    const place = event.currentTarget.getBoundingClientRect();
    const [x, y] = [event.clientX - place.left, event.clientY - place.top];
    const step = (inner - 2 * SIDE) / Math.max(1, plot.axes.length - 1);
    const i = Math.min(plot.axes.length - 2, Math.max(0, Math.floor((x - SIDE) / step)));
    const part = Math.min(1, Math.max(0, (x - SIDE) / step - i));
    const eased = part * part * (3 - 2 * part);
    let best: { number: number; left: number; top: number } | null = null;
    let least = NEAR;
    for (const thread of plot.threads) {
      const [, from] = at(i, thread.positions[i] ?? null);
      const [, to] = at(i + 1, thread.positions[i + 1] ?? null);
      const far = Math.abs(from + (to - from) * eased - y);
      if (far <= least) {
        least = far;
        best = { number: thread.number, left: x, top: y };
      }
    }
    return best;
  };
  return (
    <Card
      title="Parallel coordinates"
      flush
      aside={
        <select
          className="input auto"
          aria-label="Which trials"
          value={part}
          onChange={(event) => setPart(event.target.value)}
        >
          <option value="all">all trials</option>
          <option value="quarter">the best quarter</option>
          <option value="twentieth">the best twentieth</option>
        </select>
      }
    >
      <div className="table-box" role="region" tabIndex={0} aria-label="Parallel coordinates">
        <div className="plot clickable plot-body" ref={box}>
          <canvas
            ref={canvas}
            role="img"
            aria-label={label}
            style={{ height: HEIGHT, width: inner }}
            onPointerMove={(event) => setShown(find(event))}
            onPointerLeave={() => setShown(null)}
            onClick={(event) => {
              const found = find(event as unknown as PointerEvent<HTMLCanvasElement>) ?? shown;
              if (found) pick(found.number);
            }}
          />
          <PlotKeys
            label={label}
            order={order}
            describe={describe}
            // Next to the first visible axis.
            show={(number) =>
              setShown(
                number === null ? null : { number, left: box.current?.parentElement?.scrollLeft ?? 0, top: TOP + 60 },
              )
            }
            pick={pick}
          />
          {shown && (
            <div
              className="plot-tip"
              style={{
                top: Math.max(0, shown.top - 60),
                ...(shown.left > inner / 2 ? { right: inner - shown.left + 16 } : { left: shown.left + 16 }),
              }}
            >
              <b>Trial {shown.number}</b>
              {describe(shown.number)}
            </div>
          )}
        </div>
      </div>
      <div className="keys">
        <span>
          worst <span className="ramp" aria-hidden="true" /> best, by rank
        </span>
        <span className="dimmer">below an axis: parameter not set</span>
        {plot.count > LINES && (
          <span className="dimmer">{LINES.toLocaleString()} trials: the best fifth and an even sample</span>
        )}
      </div>
    </Card>
  );
}
