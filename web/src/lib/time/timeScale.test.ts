import { expect, test } from "vitest";
import STARTS from "./startsForTest.json";
import { axisLabels, clock, formatStart, timeScale } from "./timeScale";

const NOW = Date.parse("2026-11-21T12:00:00");
const HOUR = 3_600_000;

test("a scale contains now and all events", () => {
  const scale = timeScale(NOW, [NOW + 3 * HOUR]);
  expect(scale.end - NOW).toBe(4 * HOUR);
  expect(scale.at(NOW)).toBeGreaterThan(5);
  expect(scale.at(NOW - 100 * HOUR)).toBe(0);
  expect(scale.at(NOW + 100 * HOUR)).toBe(100);
  expect(timeScale(NOW, []).end - NOW).toBe(HOUR);
  expect(timeScale(NOW, [NOW + 9999 * HOUR]).end - NOW).toBe(168 * HOUR);
});

test.each([120, 250, 400, 900])(
  "the labels of an axis of %d pixels are round by the clock and never touch",
  (width) => {
    for (const hours of [1, 3, 8, 24, 100, 168]) {
      const scale = timeScale(NOW, [NOW + hours * HOUR]);
      const found = axisLabels(scale, NOW, width);
      if (width >= 250) expect(found.length).toBeGreaterThan(0);
      for (const { at } of found) expect(new Date(at).getMinutes() % 5).toBe(0);
      const spans = [...found, { at: NOW, text: "now" }]
        .map(({ at, text }) => ({ middle: (scale.at(at) / 100) * width, half: text.length * 3 }))
        .sort((a, b) => a.middle - b.middle);
      spans.forEach((span, i) => {
        const left = spans[i - 1];
        if (left) expect(span.middle - span.half).toBeGreaterThan(left.middle + left.half);
      });
    }
  },
);

test.each(STARTS)("an expected start reads as on the command line: $about $between", ({ start, about, between }) => {
  expect(formatStart(start, NOW)).toEqual({ about, between });
});

test("a time of another day has its date", () => {
  expect(clock(NOW + 24 * HOUR, NOW)).toMatch(/12:00/);
});
