import { describe, expect, it } from "vitest";
import type { MetricSeries } from "~/api/types";
import { newestValues, headlineMetrics, versionHeadlineMetrics } from "./headlineMetrics";

describe("headline metrics of a job", () => {
  const names = (...all: string[]) =>
    headlineMetrics(Object.fromEntries(all.map((name) => [name, 1]))).map(([name]) => name);
  it("are the user's, loss and accuracy first", () => {
    expect(names("step_s", "step_wait_s", "lr", "val_loss", "accuracy", "ps_bytes", "loss", "a", "b", "c")).toEqual([
      "loss",
      "accuracy",
      "val_loss",
      "lr",
      "a",
      "b",
    ]);
  });
  it("include the library's if there are few others", () => {
    expect(names("step_a_s", "step_b_s", "step_c_s", "step_d_s", "loss")).toEqual([
      "loss",
      "step_a_s",
      "step_b_s",
      "step_c_s",
    ]);
  });
});

describe("headline metrics of a version", () => {
  it("are test metrics, the selection metric first, then as for a job", () => {
    const all = [
      "train_loss",
      "accuracy",
      "seconds",
      "test_rows",
      "test_accuracy_low",
      "test_accuracy_baseline",
      "test_f1",
      "test_accuracy",
    ];
    const names = (most: number) =>
      versionHeadlineMetrics(Object.fromEntries(all.map((name) => [name, 1])), most).map(([name]) => name);
    expect(names(2)).toEqual(["test_accuracy", "test_f1"]);
    expect(names(5)).toEqual(["test_accuracy", "test_f1", "train_loss", "accuracy", "seconds"]);
  });
});

describe("the newest value of a metric", () => {
  const series = (attempt: number, role: string, index: number, value: number) =>
    ({ name: "loss", attempt, role, index, last_value: value }) as MetricSeries;
  it("is from the newest attempt's leader", () => {
    const all = [series(1, "chief", 0, 1), series(2, "ps", 0, 2), series(2, "worker", 1, 3), series(2, "worker", 0, 4)];
    expect(newestValues(all)).toEqual({ loss: 4 });
    expect(newestValues([...all, series(2, "chief", 0, 5)].reverse())).toEqual({ loss: 5 });
  });
});
