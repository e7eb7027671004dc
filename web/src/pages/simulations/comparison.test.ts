import { expect, test } from "vitest";
import { differenceOf, parseCluster, FIGURES, validateSimulation, overTime, describeChanges } from "./comparison";

test("changes are described, and an empty request is rejected", () => {
  const cluster = parseCluster("4", "gpu-1", "a, b");
  expect(cluster).toEqual({ more_nodes: 4, like: "gpu-1", without: ["a", "b"] });
  expect(describeChanges({ time_slice: "2h", levels_gpu: "1h" }, cluster)).toBe(
    "Time slice 2h, levels GPU 1h, 4 more nodes like gpu-1, without a, b",
  );
  expect(validateSimulation({}, parseCluster("", "", ""))).toMatch(/at least one/);
  expect(validateSimulation({}, parseCluster("2", "", ""))).toMatch(/Name the node/);
  expect(validateSimulation({ order: "fifo" }, null)).toBe("");
});

test("a difference is coloured by its direction", () => {
  const [waited, , , , , , used] = FIGURES;
  if (!waited || !used) throw new Error("no figures");
  expect(differenceOf(waited, 100, 50)).toEqual({ text: "−50 %", tone: "tone-green" });
  expect(differenceOf(waited, 100, 150)).toEqual({ text: "+50 %", tone: "tone-red" });
  expect(differenceOf(waited, 100, 100.1).text).toBe("unchanged");
  expect(differenceOf(used, 0.5, 0.75)).toEqual({ text: "+25.0 points", tone: "dim" });
  expect(differenceOf(waited, null, 1).text).toBe("–");
  expect(
    overTime("x", [
      [0, 0.5],
      [60, 1],
    ]),
  ).toMatchObject({ x: [0, 60], y: [0.5, 1] });
});
