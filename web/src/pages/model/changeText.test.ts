import { expect, it } from "vitest";
import { changeText } from "./changeText";

it("describes a model's changes", () => {
  const change = { at: "", user: "ann" };
  expect(changeText({ ...change, what: "alias.moved", name: "prod", before: "1", after: "2" }).text).toBe(
    "@prod moved from v1 to v2",
  );
  expect(changeText({ ...change, what: "alias.moved", name: "prod", after: "1" }).text).toBe("@prod set to v1");
  expect(changeText({ ...change, what: "stage.changed", before: "none", after: "production" })).toEqual({
    text: "Stage none → production",
    tone: "green",
  });
  expect(changeText({ ...change, what: "version.exploded" }).text).toBe("version.exploded");
});
