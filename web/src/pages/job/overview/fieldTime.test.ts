import { expect, it } from "vitest";
import { fieldTime, momentOf } from "./fieldTime";

it("reads a moment again as it was written into the field", () => {
  for (const at of ["2026-11-22T09:00:05.000Z", "2026-03-29T01:30:00.000Z"]) {
    expect(momentOf(fieldTime(Date.parse(at)))).toBe(at);
  }
  expect([momentOf(""), momentOf("soon")]).toEqual([null, null]);
});
