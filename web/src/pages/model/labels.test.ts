import { expect, it } from "vitest";
import { labelsOf, labelsText } from "./labels";

it("reads and writes labels", () => {
  expect(labelsOf("team = a\n\nnote=b=c\nbare\n")).toEqual({ team: "a", note: "b=c", bare: "" });
  expect(labelsText({ team: "a", bare: "" })).toBe("team=a\nbare");
});
