import { describe, expect, it } from "vitest";
import { diagnosticsOf, withValue } from "~/pages/submit/draft";
import { spansOf } from "~/pages/job/logs/ansi";
import { fieldDiff } from "./fieldDiff";
import { toggled } from "./filters";
import { age, bytes, failureCause, duration, withFullStop, formatFigure, formatGang, number } from "./format";
import { free, isInfeasible, isSchedulable } from "./capacity";
import { lineOf, smoothed } from "~/components/charts/series";
import { freeName, mergePatch, specYaml } from "./yaml/specYaml";
import type { MetricSeries } from "~/api/types";
import { newestValues, headlineMetrics, versionHeadlineMetrics } from "./headlineMetrics";

describe("numbers as people read them", () => {
  it("says sizes, times and ages in units of their own", () => {
    expect([bytes(0), bytes(1536), bytes(2 ** 40), bytes(null)]).toEqual(["0 B", "1.5 KiB", "1 TiB", "–"]);
    expect([duration(45), duration(200), duration(7500), duration(90_000)]).toEqual([
      "45 s",
      "3 min 20 s",
      "2 h 5 min",
      "1 d 1 h",
    ]);
    expect(age("2026-11-21T07:00:10Z", Date.parse("2026-11-21T07:00:00Z"))).toBe("now"); // a clock that is ahead
    expect([number(Number.NaN), number("Infinity"), number(0.00001234), number(12480)]).toEqual([
      "NaN",
      "Infinity",
      "1.23e-5",
      "12,480",
    ]);
  });
});

describe("a clone", () => {
  it("is what differs from its original, and where a field is gone its removal", () => {
    const spec = {
      name: "a",
      env: { LR: "1", SEED: "7" },
      args: ["x"],
      roles: { worker: { replicas: 2 } },
      image: null,
    };
    const edited = { ...spec, name: "a-2", env: { LR: "2" }, args: ["x", "y"], roles: { worker: { replicas: 4 } } };
    expect(mergePatch(spec, edited)).toEqual({
      name: "a-2",
      env: { LR: "2", SEED: null },
      args: ["x", "y"],
      roles: { worker: { replicas: 4 } },
    });
    expect(mergePatch(spec, spec)).toEqual({});
  });

  it("has a name that is free, and counts on from a clone's", () => {
    expect(freeName("resnet-50", false, ["resnet-50"])).toBe("resnet-50-2");
    expect(freeName("digits-2", true, ["digits", "digits-2", "digits-3"])).toBe("digits-4");
    expect(freeName("a".repeat(63), false, [])).toBe(`${"a".repeat(56)}-2`);
  });
});

describe("why a job waits or failed", () => {
  it("ends sentences, and says figures in units of people", () => {
    expect([withFullStop("Ask for less cpu"), withFullStop("It waits."), withFullStop("Is it `a`?")]).toEqual([
      "Ask for less cpu.",
      "It waits.",
      "Is it `a`?",
    ]);
    expect([
      formatFigure("cpu_milli", 8000),
      formatFigure("largest_cpu_milli", 2500),
      formatFigure("memory_bytes", 2 ** 34),
      formatFigure("free_memory_bytes", 2 ** 29),
      formatFigure("gpus", 4),
      formatFigure("largest_gpus", 2),
      formatFigure("node", "a_b"),
    ]).toEqual([
      "CPU: 8",
      "largest CPU: 2.5",
      "memory: 16 GiB",
      "free memory: 512 MiB",
      "GPUs: 4",
      "largest GPUs: 2",
      "node: a_b",
    ]);
  });

  it("begins with the cause where the state says the rest", () => {
    expect(failureCause("worker-0 failed with exit code 1; its last line was: 'no data'.")).toBe("'no data'.");
    expect(failureCause("worker-0 failed with exit code 1: 'ValueError: x' – its log shows where.")).toBe(
      "'ValueError: x' – its log shows where.",
    );
    expect(failureCause("The node of worker-0 was lost.")).toBe("The node of worker-0 was lost.");
  });

  it("tells between how many replicas an elastic role may be", () => {
    expect(formatGang({ worker: 2, ps: 1 }, { worker: 3 })).toBe("2–3 workers + 1 ps");
  });
});

describe("the metrics that are seen at once", () => {
  const names = (...all: string[]) =>
    headlineMetrics(Object.fromEntries(all.map((name) => [name, 1]))).map(([name]) => name);
  it("are the user's own, loss and accuracy first", () => {
    expect(names("step_s", "step_wait_s", "lr", "val_loss", "accuracy", "ps_bytes", "loss", "a", "b", "c")).toEqual([
      "loss",
      "accuracy",
      "val_loss",
      "lr",
      "a",
      "b",
    ]);
  });
  it("are the library's where there are few others", () => {
    expect(names("step_a_s", "step_b_s", "step_c_s", "step_d_s", "loss")).toEqual([
      "loss",
      "step_a_s",
      "step_b_s",
      "step_c_s",
    ]);
  });
});

describe("the metrics of a version that are seen at once", () => {
  it("are the test's, the one it was chosen by first, and then as a job's", () => {
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

describe("lines of terminals", () => {
  it("become coloured text, and nothing else", () => {
    expect(spansOf("a \x1b[1;31mred\x1b[0m \x1b]0;title\x07b\x1b[2K")).toEqual([
      { text: "a ", className: "" },
      { text: "red", className: "ansi-red ansi-bold" },
      { text: " ", className: "" },
      { text: "b", className: "" },
    ]);
    expect(spansOf("10%\r50%\r100%\r")).toEqual([{ text: "100%", className: "" }]);
    expect(spansOf("<b>\x1b[38;5;9mx")).toEqual([
      { text: "<b>", className: "" },
      { text: "x", className: "" },
    ]);
  });
});

describe("the form and its text", () => {
  it("changes one field and leaves comments and order", () => {
    const text = "# mine\nname: a # why\nworkers: 2\n";
    expect(withValue(text, "workers", "4")).toBe("# mine\nname: a # why\nworkers: 4\n");
    expect(withValue(text, "workers", "")).toBe("# mine\nname: a # why\n");
    expect(withValue("name: [", "workers", "4")).toBe("name: ["); // what cannot be read is not touched
  });

  it("puts mistakes where they are", () => {
    const text = "name: a\nroles:\n  worker:\n    replicas: 0\n";
    const [found] = diagnosticsOf(text, [{ path: "roles.worker.replicas", message: "too few", hint: null }]);
    expect(text.slice(found?.from, found?.to).trim()).toBe("0");
  });

  it("writes a spec without its defaults", () => {
    const spec = {
      name: "a",
      project: "default",
      command: ["x"],
      env: {},
      priority: 50,
      image: null,
      roles: { worker: { replicas: 2, resources: { cpu: null } } },
    };
    expect(specYaml(spec)).toBe("name: a\ncommand:\n  - x\nroles:\n  worker:\n    replicas: 2\n");
  });
});

describe("charts", () => {
  const series = { job: "j", attempt: 1, role: "worker", index: 0, name: "loss", kind: "scalar", count: 3 } as const;

  it("grow along x even when steps went back, and count what cannot be drawn", () => {
    const line = lineOf(
      { ...series, points: { steps: [1, 3, 2, 3], times_s: [1, 2, 3, 4], values: [1, 2, "NaN", 4] } },
      "loss",
      "step",
    );
    expect([line.x, line.y, line.notFinite]).toEqual([[1, 2, 3], [1, null, 4], 1]);
  });

  it("are smoothed without a bias at the start", () => {
    expect(smoothed([2, 2, null, 2], 0.9)).toEqual([2, 2, null, 2]);
  });
});

describe("room on nodes", () => {
  it("is what some jobs wait for in vain", () => {
    expect(["never_fits", "no_room", "reserved"].map((code) => isInfeasible({ code }))).toEqual([true, false, false]);
  });

  const node = (name: string, gpus: number, used: number) => ({
    name,
    executor: "fake",
    labels: {},
    allocatable: { cpu_milli: 8000, memory_bytes: 2 ** 34, gpus: { A: gpus } },
    used: { cpu_milli: 0, memory_bytes: 0, gpus: { A: used } },
    is_ready: true,
    is_cordoned: false,
    seen_at: "",
  });

  it("is what nobody holds, never less than nothing, and none on nodes that take no work", () => {
    expect(free(node("a", 4, 1)).gpus).toEqual({ A: 3 });
    expect(free(node("b", 4, 5)).gpus).toEqual({ A: 0 });
    const quarantine = { since: "", why: "uncorrectable ECC error in job x" };
    expect(isSchedulable({ ...node("a", 1, 0), quarantine })).toBe(false);
    expect([isSchedulable(node("a", 1, 0)), isSchedulable({ ...node("a", 1, 0), is_cordoned: true })]).toEqual([
      true,
      false,
    ]);
  });
});

describe("specs side by side", () => {
  it("tells which fields differ", () => {
    const rows = fieldDiff([
      { a: 1, b: { c: ["x", "y"] } },
      { a: 2, b: { c: ["x", "y"] }, d: null },
    ]);
    expect(rows).toEqual([
      { path: "a", values: ["1", "2"], isDifferent: true },
      { path: "b.c", values: ["x y", "x y"], isDifferent: false },
    ]);
    expect(toggled("a,b", "a")).toBe("b");
    expect(toggled("b", "b")).toBeUndefined();
  });
});

describe("the newest value of a metric", () => {
  const series = (attempt: number, role: string, index: number, value: number) =>
    ({ name: "loss", attempt, role, index, last_value: value }) as MetricSeries;
  it("is that of the newest attempt's leader", () => {
    const all = [series(1, "chief", 0, 1), series(2, "ps", 0, 2), series(2, "worker", 1, 3), series(2, "worker", 0, 4)];
    expect(newestValues(all)).toEqual({ loss: 4 });
    expect(newestValues([...all, series(2, "chief", 0, 5)].reverse())).toEqual({ loss: 5 });
  });
});
