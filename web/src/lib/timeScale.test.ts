import { expect, test } from "vitest";
import { clock, startWords, ticks, timeScale } from "./timeScale";

const NOW = Date.parse("2026-11-21T12:00:00");
const HOUR = 3_600_000;

test("a scale reaches as far as there is something to see, and holds now", () => {
  const scale = timeScale(NOW, [NOW + 3 * HOUR]);
  expect(scale.end - NOW).toBe(4 * HOUR);
  expect(scale.at(NOW)).toBeGreaterThan(5);
  expect(scale.at(NOW - 100 * HOUR)).toBe(0);
  expect(scale.at(NOW + 100 * HOUR)).toBe(100);
  expect(timeScale(NOW, []).end - NOW).toBe(HOUR);
  expect(timeScale(NOW, [NOW + 9999 * HOUR]).end - NOW).toBe(168 * HOUR);
});

test("ticks are round by the clock and few", () => {
  const found = ticks(timeScale(NOW, [NOW + 3 * HOUR]));
  expect(found.length).toBeGreaterThan(2);
  expect(found.length).toBeLessThan(8);
  for (const at of found) expect(new Date(at).getMinutes() % 30).toBe(0);
});

test("an expected start is told with how sure it is", () => {
  const at = (hours: number) => new Date(NOW + hours * HOUR).toISOString();
  const known = { code: "expected", early_at: at(1), likely_at: at(2), late_at: at(3) };
  expect(startWords(known, NOW)).toEqual({ about: "about 14:00", between: "13:00 to 15:00" });
  expect(startWords({ ...known, late_at: null }, NOW).between).toBe("13:00 to any time later");
  expect(startWords(null, NOW)).toEqual({ about: "", between: "" });
  expect(startWords({ code: "now" }, NOW).about).toBe("now");
  expect(clock(NOW + 24 * HOUR, NOW)).toMatch(/12:00/);
});
