import { expect, it } from "vitest";
import { batchRequest, modelFromLabels } from "./batchRequest";

const fields = (values: Record<string, string>) => new Map(Object.entries(values));

it("labels only registered models", () => {
  expect(batchRequest(fields({ model: "digits@3", input: "data/q", replicas: "2", name: "" }))).toEqual({
    model: "digits@3",
    input: "data/q",
    replicas: 2,
    trust_code: false,
    resources: {},
    labels: { model: "digits", version: "3" },
  });
  expect(batchRequest(fields({ model: "data/m", input: "data/q" })).labels).toEqual({});
  expect(modelFromLabels({ model: "digits", version: "prod" })).toBe("digits@prod");
  expect(modelFromLabels({ model: "mine" })).toBeUndefined();
});
