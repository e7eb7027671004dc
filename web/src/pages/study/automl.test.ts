import { expect, test } from "vitest";
import { bestOfFamilies, isAutoml, type LeaderboardRow, formatPoint, formatScore } from "./automl";

const row = (rank: number, family: string, score: number, spread: number | null = null) =>
  ({
    rank,
    trial: rank,
    family,
    score,
    spread,
    seconds: null,
    is_whole: true,
    parameters: {},
    job: null,
  }) as LeaderboardRow;

test("families are sorted by their best model, those without a score last", () => {
  const leaderboard = [row(1, "forest", 0.9), row(2, "linear", 0.8), row(3, "forest", 0.7)];
  const found = bestOfFamilies({ families: ["baseline", "linear", "cnn", "forest"], leaderboard });
  expect(found.map((one) => [one.family, one.row?.score, one.trialCount])).toEqual([
    ["forest", 0.9, 2],
    ["linear", 0.8, 1],
    ["baseline", undefined, 0],
    ["cnn", undefined, 0],
  ]);
});

test("a score may have a spread", () => {
  expect(formatScore(row(1, "forest", 0.87654, 0.01234))).toBe("0.8765 ± 0.012");
  expect(formatScore(row(1, "forest", 0.87654))).toBe("0.8765");
});

test("parameters have no family prefix", () => {
  const parameters = { boosting_rate: 0.20741, boosting_leaves: 18, balance: true };
  expect(formatPoint({ family: "boosting", parameters })).toBe("rate 0.2074, leaves 18, balance true");
  expect(formatPoint({ family: "baseline", parameters: {} })).toBe("");
});

test("an AutoML study has a label", () => {
  expect(isAutoml({ automl: "tabular" })).toBe(true);
  expect(isAutoml({ team: "vision" })).toBe(false);
  expect(isAutoml(undefined)).toBe(false);
});
