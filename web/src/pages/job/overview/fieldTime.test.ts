import { expect, it } from "vitest";
import { toFieldTime, toUtcTime } from "./fieldTime";

it("round-trips a time", () => {
  for (const at of ["2026-11-22T09:00:05.000Z", "2026-03-29T01:30:00.000Z"]) {
    expect(toUtcTime(toFieldTime(Date.parse(at)))).toBe(at);
  }
  expect([toUtcTime(""), toUtcTime("soon")]).toEqual([null, null]);
});
