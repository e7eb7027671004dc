import { expect, it } from "vitest";
import type { Holder, Node } from "~/api/types";
import { devicesOf } from "./devices";

const node = (gpus: readonly string[]) =>
  ({
    name: "a",
    allocatable: { cpu_milli: 1, memory_bytes: 1, gpus: { a100: gpus.length } },
    gpus: gpus.map((id) => ({ id, model: "a100" })),
  }) as unknown as Node;
const holder = (job: string, gpus: string[], gpu_part?: number) =>
  ({ node: "a", job, job_id: job, gpus, gpu_part, cpu_milli: 1, memory_bytes: 1 }) as unknown as Holder;

it("shows all holders of a shared device", () => {
  const holders = [holder("one", ["g0"], 0.5), holder("two", ["g0"], 0.25), holder("whole", ["g1"])];
  const devices = devicesOf(node(["g0", "g1", "g2"]), holders);
  expect(devices.map((device) => device.holders.map((one) => one.job))).toEqual([["one", "two"], ["whole"], []]);
});

it("assigns unknown devices from the first one on", () => {
  const devices = devicesOf(node(["g0", "g1"]), [holder("one", ["unknown"])]);
  expect(devices.map((device) => device.holders.length)).toEqual([1, 0]);
});
