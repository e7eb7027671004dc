import { describe, expect, it } from "vitest";
import { batchRequest, modelFromLabels } from "~/pages/batch/batchRequest";
import { deployRequest, modelOf, resourcesOf, inheritedFields } from "./deployRequest";
import { changeText } from "~/pages/model/changeText";
import { labelsOf, labelsText } from "~/pages/model/labels";
import { parseHolder, jobOutputAt } from "~/lib/locations";
import { curlOf, jsonError } from "./predictRequest";
import { rolloutParts, formatPart, worstState } from "./rollout";

const fields = (values: Record<string, string>) => new Map(Object.entries(values));

describe("a request to deploy", () => {
  const spec = {
    model: "output/.models/default/version-1",
    model_file: "",
    model_name: "digits@3",
    image: null,
    resources: { cpu: 2, memory: "1Gi" },
    timeout_s: 30,
    trust_code: true,
    max_surge: 1,
  };

  it("leaves unstated what is empty", () => {
    expect(deployRequest(fields({ model: " digits@3 ", replicas: "", deployment: "", cpu: "0.5", gpus: "1" }))).toEqual(
      {
        model: "digits@3",
        trust_code: false,
        resources: { cpu: 0.5, gpus: 1 },
      },
    );
  });

  it("takes over what the revision before was, but its model", () => {
    expect(modelOf(spec)).toBe("digits@3");
    expect(modelOf({ model: "data/x", model_file: "m.pt" })).toBe("data/x/m.pt");
    const next = deployRequest(
      fields({ model: "digits@4", memory: "2Gi", timeout_s: "5", trust_code: "on" }),
      inheritedFields(spec),
    );
    expect(next).toMatchObject({ model: "digits@4", timeout_s: 5, trust_code: true, max_surge: 1 });
    expect(next.resources).toEqual({ cpu: 2, memory: "2Gi" });
    expect(next).not.toHaveProperty("image");
    expect(next).not.toHaveProperty("model_name");
  });

  it("has resources as job specs have them", () => {
    expect(resourcesOf(fields({ cpu: "500m", memory: " ", gpus: "0" }))).toEqual({ cpu: "500m", gpus: 0 });
  });
});

it("labels a batch prediction with a registered model alone", () => {
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

it("tells how far an update is", () => {
  const replica = (revision: number, state: "ready" | "starting" | "draining" | "ended") =>
    ({ id: `${revision}${state}`, revision, state, job: "job-1", job_state: "running", created_at: "" }) as const;
  const waiting = { ...replica(2, "starting"), id: "2queued", job_state: "queued" } as const;
  const replica_list = [
    replica(1, "draining"),
    waiting,
    replica(2, "starting"),
    replica(1, "ready"),
    replica(2, "ready"),
    replica(1, "ended"),
  ];
  const found = rolloutParts({ wanted: 2, replica_list });
  expect(found.map((part) => [part.revision, formatPart(part)])).toEqual([
    [2, "1 ready, 1 starting, 1 queued"],
    [1, "1 ready, 1 draining"],
  ]);
  expect([worstState(["ready", "degraded"]), worstState([]), worstState(["undeploying"])]).toEqual([
    "degraded",
    "ended",
    "undeploying",
  ]);
});

it("finds the pages of places and holders", () => {
  expect(jobOutputAt("output/default/job-06f9s2m3k1/model")).toEqual({ job: "job-06f9s2m3k1", path: "model" });
  expect(jobOutputAt("output/default/job-06f9s2m3k1")).toEqual({ job: "job-06f9s2m3k1", path: "" });
  expect(jobOutputAt("data/mnist")).toBeNull();
  expect(parseHolder("endpoint digits, deployed model default")).toEqual({ endpoint: "digits", deployment: "default" });
  expect(parseHolder("somebody else")).toBeNull();
});

it("says a model's history in words", () => {
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

it("reads and writes labels", () => {
  expect(labelsOf("team = a\n\nnote=b=c\nbare\n")).toEqual({ team: "a", note: "b=c", bare: "" });
  expect(labelsText({ team: "a", bare: "" })).toBe("team=a\nbare");
});

it("writes a request for a shell, whatever is in it", () => {
  expect(jsonError('{"instances": [1]}')).toBeUndefined();
  expect(jsonError("{")).toMatch(/^Not JSON/);
  expect(jsonError(" ")).toMatch(/^Write a JSON body/);
  expect(curlOf("http://h/p:predict", '{"a": "it\'s"}')).toContain(`-d '{"a":"it'\\''s"}'`);
});
