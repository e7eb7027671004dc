import "uplot/dist/uPlot.min.css";
import { useEffect, useRef } from "react";
import uPlot from "uplot";
import { clockTime, dayOf, duration, number } from "~/lib/format";
import { type Line, smoothed } from "./series";
import { useTheme } from "~/lib/browser/theme";

export const HUES = 6;
const HEIGHT = 200; // px
const LEGEND = 8; // lines at most that are named under the chart

interface ChartProps {
  lines: readonly Line[];
  /** Unit of the x axis: steps, times, or seconds since a start. */
  by: "step" | "time" | "elapsed";
  isLog: boolean;
  smoothing: number;
  label: string;
  /** Formats a value. */
  unit: (value: unknown) => string;
  /** Bytes: the axis has ticks at powers of two. */
  isBinary?: boolean;
  /** The value axis starts at zero and reaches at least this value. */
  leastTop?: number;
}

const FONT = "11px Inter Variable, sans-serif";
const POWERS_OF_TWO = Array.from({ length: 60 }, (_, power) => 2 ** power);
const DAY_S = 86_400;
const ELAPSED_S = [
  1,
  5,
  10,
  30,
  60,
  300,
  600,
  1800,
  3600,
  7200,
  14_400,
  21_600,
  43_200,
  ...[1, 2, 5, 10, 30, 90].map((days) => days * DAY_S),
];

/** A line chart, drawn by uPlot. */
export function Chart({ lines, by, isLog, smoothing, label, unit, isBinary = false, leastTop }: ChartProps) {
  const box = useRef<HTMLDivElement>(null);
  const theme = useTheme();
  useEffect(() => {
    const element = box.current;
    if (element === null) return;
    const draw = () => drawChart(element, { lines, by, isLog, smoothing, unit, isBinary, leastTop });
    let chart = draw();
    const resized = new ResizeObserver(() => chart.setSize({ width: element.clientWidth, height: HEIGHT }));
    resized.observe(element);
    const system = window.matchMedia("(prefers-color-scheme: dark)");
    const redraw = () => {
      chart.destroy();
      chart = draw();
    };
    system.addEventListener("change", redraw);
    return () => {
      system.removeEventListener("change", redraw);
      resized.disconnect();
      chart.destroy();
    };
  }, [lines, by, isLog, smoothing, unit, isBinary, leastTop, theme]);
  const last = lines
    .map((line) => `${line.label}: ${unit(line.y.findLast((value) => value !== null))}`)
    .slice(0, LEGEND);
  return <div ref={box} className="chart" role="img" aria-label={`${label}. Latest: ${last.join(", ")}`} />;
}

function drawChart(
  element: HTMLElement,
  {
    lines,
    by,
    isLog,
    smoothing,
    unit,
    isBinary,
    leastTop,
  }: Omit<ChartProps, "label" | "leastTop"> & { leastTop: number | undefined },
): uPlot {
  const tables: uPlot.AlignedData[] = [];
  const series: uPlot.Series[] = [{ label: by }];
  const bands: uPlot.Band[] = [];
  for (const [i, line] of lines.entries()) {
    const colour = resolveColour(element, `--line-${i % HUES}`);
    tables.push([line.x, smoothed(line.y, smoothing)] as uPlot.AlignedData);
    series.push({
      label: line.label,
      stroke: colour,
      width: 1.5,
      spanGaps: true,
      points: { show: line.x.length < 3 },
      value: (_, v) => number(v),
    });
    if (line.low === null || line.high === null) continue;
    const at = series.length;
    tables[i] = [line.x, smoothed(line.y, smoothing), line.high, line.low] as uPlot.AlignedData;
    series.push(
      { show: true, stroke: "transparent", spanGaps: true, points: { show: false } },
      { stroke: "transparent", spanGaps: true, points: { show: false } },
    );
    bands.push({ series: [at, at + 1], fill: faint(colour) });
  }
  const data = lines.length === 0 ? [[0], [null]] : uPlot.join(tables);
  const axis = {
    stroke: resolveColour(element, "--text-3"),
    grid: { stroke: resolveColour(element, "--line"), width: 1 },
    ticks: { show: false },
    font: FONT,
  };
  const options: uPlot.Options = {
    width: Math.max(120, element.clientWidth),
    height: HEIGHT,
    series,
    bands,
    scales: {
      x: { time: by === "time" },
      y: isLog
        ? { distr: 3, clamp: 1e-12 }
        : leastTop === undefined
          ? {}
          : { range: (_, _low, high) => [0, 1.05 * Math.max(high, leastTop)] },
    },
    axes: [
      {
        ...axis,
        size: 28,
        ...(by === "time"
          ? { space: 64, values: (_, ticks, _axis, _space, apart) => ticks.map((tick) => timeTick(tick, apart)) }
          : by === "elapsed"
            ? {
                space: 72,
                incrs: ELAPSED_S,
                values: (_, ticks) => ticks.map((tick) => (tick === 0 ? "0" : duration(tick))),
              }
            : {}),
      },
      {
        ...axis,
        size: (chart, labels) => axisWidth(chart, labels),
        values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : unit(tick))),
        ...(isBinary && !isLog ? { incrs: POWERS_OF_TWO } : {}),
      },
    ],
    legend: { show: false },
    cursor: { points: { size: 6 }, y: false },
    hooks: { setCursor: [(chart) => showTip(element, chart, { lines, by, unit })] },
    padding: [8, 18, 0, 0],
  };
  return new uPlot(options, data as uPlot.AlignedData, element);
}

/** A time, as precise as ticks `apart_s` seconds apart need to differ. */
function timeTick(tick: number, apart_s: number): string {
  const at = new Date(tick * 1000).toISOString();
  if (apart_s >= DAY_S) return dayOf(at);
  return apart_s < 60 ? clockTime(at) : clockTime(at).slice(0, 5);
}

/** Width of an axis by its widest label, in CSS pixels. */
function axisWidth(chart: uPlot, labels: string[] | null): number {
  chart.ctx.save();
  chart.ctx.font = FONT;
  const widest = Math.max(0, ...(labels ?? []).map((label) => chart.ctx.measureText(label).width));
  chart.ctx.restore();
  return Math.max(40, Math.ceil(widest) + 16);
}

/** Shows the values at the cursor in a box next to it. */
function showTip(
  element: HTMLElement,
  chart: uPlot,
  { lines, by, unit }: Pick<ChartProps, "lines" | "by" | "unit">,
): void {
  let tip = element.querySelector<HTMLElement>(".chart-tip");
  const at = chart.cursor.idx;
  if (at === null || at === undefined || (chart.cursor.left ?? -1) < 0) {
    tip?.remove();
    return;
  }
  if (tip === null) {
    tip = document.createElement("div");
    tip.className = "chart-tip";
    element.append(tip);
  }
  const x = chart.data[0][at] ?? 0;
  const head = document.createElement("b");
  head.textContent =
    by === "step"
      ? `step ${number(x)}`
      : by === "time"
        ? clockTime(new Date(x * 1000).toISOString())
        : `after ${duration(x)}`;
  const rows = lines.slice(0, LEGEND).flatMap((line, i) => {
    const near = nearest(line.x, x);
    const value = near === -1 ? null : line.y[near];
    if (value === null || value === undefined) return [];
    const row = document.createElement("div");
    row.className = `chart-tip-row line-${i % HUES}`;
    row.textContent = `${line.label}  ${unit(value)}`;
    return [row];
  });
  tip.replaceChildren(head, ...rows);
  const left = (chart.cursor.left ?? 0) + chart.bbox.left / window.devicePixelRatio;
  tip.style.left = left > element.clientWidth / 2 ? "" : `${left + 14}px`;
  tip.style.right = left > element.clientWidth / 2 ? `${element.clientWidth - left + 14}px` : "";
}

function nearest(x: readonly number[], target: number): number {
  let low = 0;
  let high = x.length - 1;
  if (high < 0 || target < (x[0] ?? 0) || target > (x[high] ?? 0)) return -1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((x[middle] ?? 0) < target) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** A canvas cannot use CSS custom properties: the browser resolves them here. */
function resolveColour(element: HTMLElement, name: string): string {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  element.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}

const faint = (colour: string): string => colour.replace(/^rgb\(([^)]*)\)$/, "rgba($1, 0.16)");
