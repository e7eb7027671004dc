import { expect, it } from "vitest";
import { parseHolder, jobOutputAt } from "./locations";

it("finds the pages of paths and deployments", () => {
  expect(jobOutputAt("output/default/job-06f9s2m3k1/model")).toEqual({ job: "job-06f9s2m3k1", path: "model" });
  expect(jobOutputAt("output/default/job-06f9s2m3k1")).toEqual({ job: "job-06f9s2m3k1", path: "" });
  expect(jobOutputAt("data/mnist")).toBeNull();
  expect(parseHolder("endpoint digits, deployed model default")).toEqual({ endpoint: "digits", deployment: "default" });
  expect(parseHolder("another holder")).toBeNull();
});
