import { type PointerEvent, useCallback, useEffect, useMemo, useRef, useState } from "react";
import type { Axis } from "~/components/charts/axis";
import { useTheme } from "~/lib/browser/theme";
import { useWidth } from "~/lib/browser/width";
import { PlotKeys } from "./plotKeys";

/* Points, lines and areas on a canvas: thousands of trials are drawn in some milliseconds. The content is in its label
 * and in a table elsewhere; the keyboard moves through the trials one by one. */

export interface PlotPoint {
  number: number;
  x: unknown;
  y: unknown;
  /** One of the chart's line colours, or a rank between worst (0) and best (1). */
  hue: number | { good: number };
  isHollow?: boolean;
}

export interface PlotLine {
  number?: number;
  points: readonly (readonly [unknown, unknown])[];
  hue: number | { good: number };
  isStepped?: boolean;
  isDashed?: boolean;
  isFaint?: boolean;
}

interface PlotProps {
  label: string;
  x: Axis;
  y: Axis;
  /** Names at the end of the axes; none where the page shows them elsewhere. */
  xName?: string;
  yName?: string;
  height?: number;
  points?: readonly PlotPoint[];
  lines?: readonly PlotLine[];
  bands?: readonly { x: readonly number[]; low: readonly number[]; high: readonly number[]; hue: number }[];
  /** A square grid of `side` × `side` cells from bottom left, ranked from worst (0) to best (1). */
  field?: { side: number; cells: readonly (number | null)[] } | undefined;
  isSmall?: boolean;
  describe: (number: number) => string;
  pick?: (number: number) => void;
}

const NEAR = 18; // px
const NAMED = 18; // px, height of an axis name
const FONT = "11px Inter Variable, sans-serif";

export function Plot({ height = 240, isSmall = false, ...props }: PlotProps) {
  const [box, width] = useWidth<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const [hovered, setHovered] = useState<HoveredTrial | null>(null);
  const theme = useTheme();
  const shown = hovered?.number;
  const { points, lines, x, y } = props;
  const order = useMemo(() => keyOrder(points ?? [], lines ?? [], x, y), [points, lines, x, y]);
  const isDark = useDark();
  useEffect(() => {
    const element = canvas.current;
    if (element !== null && width > 0) paint(element, width, height, isSmall, props, shown);
  });
  void theme;
  void isDark;

  const find = useCallback(
    (event: PointerEvent<HTMLCanvasElement>) => {
      const at = event.currentTarget.getBoundingClientRect();
      return nearest(event.clientX - at.left, event.clientY - at.top, frame(width, height, isSmall, props), props);
    },
    [width, height, isSmall, props],
  );
  return (
    <div className={`plot${props.pick ? " clickable" : ""}`} ref={box}>
      <canvas
        ref={canvas}
        role="img"
        aria-label={props.label}
        style={{ height }}
        onPointerMove={(event) => setHovered(find(event))}
        onPointerLeave={() => setHovered(null)}
        onClick={(event) => {
          // Opens the trial that is shown: a click has whole pixels, and may lie a little farther away.
          const found = find(event as unknown as PointerEvent<HTMLCanvasElement>) ?? hovered;
          if (found) props.pick?.(found.number);
        }}
      />
      {props.pick && (
        <PlotKeys
          label={props.label}
          order={order}
          describe={props.describe}
          show={(number) =>
            setHovered(number === null ? null : positionOf(number, frame(width, height, isSmall, props), props))
          }
          pick={props.pick}
        />
      )}
      {hovered && (
        <div
          className="plot-tip"
          style={{
            top: Math.max(0, hovered.top - 10),
            ...(hovered.left > width / 2 ? { right: width - hovered.left + 14 } : { left: hovered.left + 14 }),
          }}
        >
          <b>Trial {hovered.number}</b>
          {props.describe(hovered.number)}
        </div>
      )}
    </div>
  );
}

/** Redraws when the system's colour scheme changes. */
function useDark(): boolean {
  const [isDark, setDark] = useState(false);
  useEffect(() => {
    const system = window.matchMedia("(prefers-color-scheme: dark)");
    const changed = () => setDark(system.matches);
    changed();
    system.addEventListener("change", changed);
    return () => system.removeEventListener("change", changed);
  }, []);
  return isDark;
}

interface Frame {
  left: number;
  top: number;
  width: number;
  height: number;
}

function frame(width: number, height: number, isSmall: boolean, props: PlotProps): Frame {
  const longest = Math.max(0, ...props.y.ticks.map((tick) => tick.text.length));
  const left = Math.min(110, Math.max(isSmall ? 34 : 40, longest * 6.4 + 12));
  const [top, bottom] = [props.yName ? 8 + NAMED : 8, props.xName ? 22 + NAMED : 22];
  return { left, top, width: width - left - 12, height: height - top - bottom };
}

type Spot = [number, number] | null;

function spot(at: Frame, props: PlotProps, x: unknown, y: unknown, number = 0): Spot {
  const [across, up] = [props.x.position(x), props.y.position(y)];
  if (across === null || up === null) return null;
  // Points of one category lie next to each other, each always at the same offset.
  const maxWidth = (axis: Axis) =>
    axis.choices ? (((number * 0.618) % 1) - 0.5) * (0.6 / Math.max(1, axis.choices.length)) : 0;
  const [dx, dy] = [number ? maxWidth(props.x) : 0, number ? maxWidth(props.y) : 0];
  const clamp = (place: number) => Math.min(1.02, Math.max(-0.02, place));
  return [at.left + clamp(across + dx) * at.width, at.top + (1 - clamp(up + dy)) * at.height];
}

interface HoveredTrial {
  number: number;
  left: number;
  top: number;
}

function nearest(x: number, y: number, at: Frame, props: PlotProps): HoveredTrial | null {
  let best: HoveredTrial | null = null;
  let least = NEAR * NEAR;
  const consider = (number: number, position: Spot) => {
    if (position === null) return;
    const far = (position[0] - x) ** 2 + (position[1] - y) ** 2;
    if (far < least) {
      least = far;
      best = { number, left: position[0], top: position[1] };
    }
  };
  for (const point of props.points ?? []) consider(point.number, spot(at, props, point.x, point.y, point.number));
  for (const line of props.lines ?? []) {
    if (line.number === undefined) continue;
    let before: Spot = null;
    for (const [px, py] of line.points) {
      const position = spot(at, props, px, py);
      // Few steps on a wide chart lie far apart: test the segment between them, too.
      consider(
        line.number,
        before !== null && position !== null ? nearestOnSegment([x, y], before, position) : position,
      );
      before = position;
    }
  }
  return best;
}

/** The point of the segment from a to b that is nearest to a third point. */
function nearestOnSegment(
  [x, y]: [number, number],
  [ax, ay]: [number, number],
  [bx, by]: [number, number],
): [number, number] {
  const [dx, dy] = [bx - ax, by - ay];
  const length = dx * dx + dy * dy;
  const part = length === 0 ? 0 : Math.min(1, Math.max(0, ((x - ax) * dx + (y - ay) * dy) / length));
  return [ax + part * dx, ay + part * dy];
}

/** Position of a trial's point, or of the end of its line. */
function positionOf(number: number, at: Frame, props: PlotProps): HoveredTrial | null {
  const point = props.points?.find((each) => each.number === number);
  const end = props.lines?.find((line) => line.number === number)?.points.at(-1);
  const position = point ? spot(at, props, point.x, point.y, number) : end ? spot(at, props, end[0], end[1]) : null;
  return position === null ? null : { number, left: position[0], top: position[1] };
}

/** Order of keyboard navigation: curves from best to worst, or else points from left to right, then from the bottom. */
export function keyOrder(
  points: readonly PlotPoint[],
  lines: readonly PlotLine[],
  x: Axis,
  y: Axis,
): readonly number[] {
  const goodness = (line: PlotLine) => (typeof line.hue === "number" ? 0 : line.hue.good);
  const curves = lines.flatMap((line) =>
    line.number === undefined ? [] : [{ number: line.number, good: goodness(line) }],
  );
  if (curves.length > 0) return curves.sort((a, b) => b.good - a.good).map((curve) => curve.number);
  return points
    .flatMap((point) => {
      const [across, up] = [x.position(point.x), y.position(point.y)];
      return across === null || up === null ? [] : [{ number: point.number, across, up }];
    })
    .sort((a, b) => a.across - b.across || a.up - b.up || a.number - b.number)
    .map((point) => point.number);
}

function paint(
  canvas: HTMLCanvasElement,
  width: number,
  height: number,
  isSmall: boolean,
  props: PlotProps,
  shown: number | undefined,
): void {
  const context = canvas.getContext("2d");
  if (context === null) return;
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  context.scale(ratio, ratio);
  const at = frame(width, height, isSmall, props);
  const colours = coloursOf(canvas);
  context.font = FONT;
  const whole = (length: number) => Math.round(length * ratio) / ratio;

  if (props.field) {
    const { side, cells } = props.field;
    for (const [i, good] of cells.entries()) {
      if (good === null) continue;
      context.fillStyle = colours.ramp(good);
      context.globalAlpha = 0.75;
      const [column, row] = [i % side, Math.floor(i / side)];
      // Aligned to whole screen pixels: overlaps and gaps would show as a grid.
      const across = (place: number) => whole(at.left + (place / side) * at.width);
      const down = (place: number) => whole(at.top + (1 - place / side) * at.height);
      const [left, top] = [across(column), down(row + 1)];
      context.fillRect(left, top, across(column + 1) - left, down(row) - top);
    }
    context.globalAlpha = 1;
  }
  axes(context, at, props, colours, isSmall);
  for (const band of props.bands ?? []) {
    const ends = (values: readonly number[]) =>
      band.x.map((x, i) => spot(at, props, x, values[i])).filter((each): each is [number, number] => each !== null);
    const [low, high] = [ends(band.low), ends(band.high)];
    context.beginPath();
    for (const [i, [x, y]] of [...low, ...high.reverse()].entries()) {
      if (i === 0) context.moveTo(x, y);
      else context.lineTo(x, y);
    }
    context.fillStyle = colours.line(band.hue);
    context.globalAlpha = 0.18;
    context.fill();
    context.globalAlpha = 1;
  }
  for (const line of props.lines ?? []) {
    const isShown = line.number !== undefined && line.number === shown;
    context.beginPath();
    let before: Spot = null;
    for (const [x, y] of line.points) {
      const position = spot(at, props, x, y);
      if (position === null) {
        before = null;
        continue;
      }
      if (before === null) context.moveTo(...position);
      else {
        if (line.isStepped) context.lineTo(position[0], before[1]);
        context.lineTo(...position);
      }
      before = position;
    }
    context.strokeStyle = typeof line.hue === "number" ? colours.line(line.hue) : colours.ramp(line.hue.good);
    context.lineWidth = isShown ? 3 : line.isFaint ? 1 : 2;
    context.globalAlpha = isShown ? 1 : line.isFaint ? 0.8 : 1;
    context.setLineDash(line.isDashed ? [5, 4] : []);
    context.stroke();
    context.setLineDash([]);
    context.globalAlpha = 1;
  }
  const points = props.points ?? [];
  const radius = points.length > 2000 ? 1.8 : isSmall || points.length > 400 ? 2.4 : 3.4;
  context.globalAlpha = points.length > 2000 ? 0.55 : 0.85;
  for (const point of points) {
    const position = spot(at, props, point.x, point.y, point.number);
    if (position === null) continue;
    const colour = typeof point.hue === "number" ? colours.line(point.hue) : colours.ramp(point.hue.good);
    context.beginPath();
    context.arc(position[0], position[1], point.number === shown ? radius + 2.5 : radius, 0, 2 * Math.PI);
    if (props.field) {
      context.fillStyle = colours.text;
      context.fill();
    } else if (point.isHollow) {
      context.strokeStyle = colour;
      context.lineWidth = 1.3;
      context.stroke();
    } else {
      context.fillStyle = colour;
      context.fill();
    }
  }
  context.globalAlpha = 1;
}

function axes(
  context: CanvasRenderingContext2D,
  at: Frame,
  props: PlotProps,
  colours: Colours,
  isSmall: boolean,
): void {
  context.strokeStyle = colours.grid;
  context.fillStyle = colours.text;
  context.lineWidth = 1;
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (const tick of props.y.ticks) {
    const y = at.top + (1 - tick.at) * at.height;
    if (tick.at < -0.01 || tick.at > 1.01) continue;
    context.beginPath();
    context.moveTo(at.left, Math.round(y) + 0.5);
    context.lineTo(at.left + at.width, Math.round(y) + 0.5);
    context.stroke();
    context.fillText(cut(context, tick.text, at.left - 10), at.left - 7, y);
  }
  context.textBaseline = "top";
  context.textAlign = "center";
  let taken = Number.NEGATIVE_INFINITY;
  const maxWidth = props.x.choices ? at.width / Math.max(1, props.x.ticks.length) : at.width / (isSmall ? 2 : 3);
  for (const tick of [...props.x.ticks].sort((a, b) => a.at - b.at)) {
    if (tick.at < -0.01 || tick.at > 1.01) continue;
    const text = cut(context, tick.text, Math.max(24, maxWidth));
    const half = context.measureText(text).width / 2;
    const x = Math.min(at.left + at.width - half + 10, Math.max(at.left - 8 + half, at.left + tick.at * at.width));
    if (x - half < taken + 6) continue;
    taken = x + half;
    context.fillText(text, x, at.top + at.height + 7);
  }
  // Both names are horizontal: one above its axis, the other below the end of its axis.
  const all = at.left + at.width;
  if (props.yName) {
    context.textAlign = "left";
    context.fillText(cut(context, props.yName, all - 4), 4, 2);
  }
  if (props.xName) {
    context.textAlign = "right";
    context.fillText(cut(context, props.xName, all), all, at.top + at.height + 7 + NAMED);
  }
}

/** Shortens a text to the given width. */
function cut(context: CanvasRenderingContext2D, text: string, maxWidth: number): string {
  if (context.measureText(text).width <= maxWidth) return text;
  let shortened = text;
  while (shortened.length > 1 && context.measureText(`${shortened}…`).width > maxWidth)
    shortened = shortened.slice(0, -1);
  return `${shortened}…`;
}

export interface Colours {
  grid: string;
  text: string;
  ground: string;
  line: (hue: number) => string;
  /** From worst (0) over neutral to best (1). */
  ramp: (good: number) => string;
}

/** A canvas cannot use CSS custom properties: the browser resolves them here. */
export function coloursOf(element: HTMLElement): Colours {
  const probe = document.createElement("span");
  element.parentElement?.append(probe);
  const read = (name: string): [number, number, number] => {
    probe.style.color = `var(${name})`;
    const parts = getComputedStyle(probe).color.match(/[\d.]+/g) ?? [];
    return [Number(parts[0] ?? 0), Number(parts[1] ?? 0), Number(parts[2] ?? 0)];
  };
  const lines = Array.from({ length: 6 }, (_, i) => read(`--line-${i}`));
  const [grid, text, middle, ground] = [read("--line"), read("--text-3"), read("--ramp-middle"), read("--surface")];
  probe.remove();
  const css = (colour: readonly number[]) => `rgb(${colour.map(Math.round).join(", ")})`;
  const mix = (a: readonly number[], b: readonly number[], part: number) =>
    css(a.map((each, i) => each + ((b[i] ?? 0) - each) * part));
  const [best, worst] = [lines[0] ?? grid, lines[1] ?? grid];
  return {
    grid: css(grid),
    text: css(text),
    ground: css(ground),
    line: (hue) => css(lines[hue % 6] ?? grid),
    ramp: (good) => (good < 0.5 ? mix(worst, middle, good * 2) : mix(middle, best, good * 2 - 1)),
  };
}
