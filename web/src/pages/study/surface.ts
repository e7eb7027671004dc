/* Inverse distance weighting: a grid of values interpolated between trials. */

export interface Sample {
  /** From 0 to 1, like `y`. */
  x: number;
  y: number;
  value: number;
}

const POWER = 3;
/** Cells farther than this from every trial stay empty. */
const REACH = 0.22;

export function interpolateSurface(known: readonly Sample[], side: number): (number | null)[] {
  const cells: (number | null)[] = [];
  for (let row = 0; row < side; row += 1) {
    for (let column = 0; column < side; column += 1) {
      const [x, y] = [(column + 0.5) / side, (row + 0.5) / side];
      let [sum, weights, least] = [0, 0, Number.POSITIVE_INFINITY];
      for (const point of known) {
        const far = Math.hypot(point.x - x, point.y - y);
        const weight = 1 / (far + 0.02) ** POWER;
        sum += weight * point.value;
        weights += weight;
        least = Math.min(least, far);
      }
      cells.push(least <= REACH && weights > 0 ? sum / weights : null);
    }
  }
  return cells;
}

/** Each value's rank from worst (0) to best (1): robust against outliers. */
export function rankScale(values: readonly number[], isLessBetter: boolean): (value: number) => number {
  const sorted = [...values].sort((a, b) => (isLessBetter ? b - a : a - b));
  const rank = new Map<number, number>();
  for (const [i, value] of sorted.entries()) rank.set(value, sorted.length < 2 ? 1 : i / (sorted.length - 1));
  return (value) => rank.get(value) ?? 0.5;
}
