import { expect, it } from "vitest";
import { equalBins } from "./equalBins";

it("distributes narrow bins to equal ones without loss", () => {
  expect(equalBins([0, 1, 2], [4, 8], 4)).toEqual([2, 2, 4, 4]);
  // As TensorBoard's: tiny ones about zero, and wide ones at the sides.
  const bins = equalBins([-1, -0.5, -1e-9, 1e-9, 0.5, 1], [100, 300, 2, 300, 100], 4);
  expect(bins.map(Math.round)).toEqual([100, 301, 301, 100]);
  expect(bins.reduce((sum, each) => sum + each)).toBeCloseTo(802);
});

it("handles a single value", () => {
  expect(equalBins([2, 2], [7], 3)).toEqual([7, 0, 0]);
  expect(equalBins([], [], 2)).toEqual([0, 0]);
});
