import { describe, expect, it } from "vitest";
import { deployRequest, modelOf, resourcesOf, inheritedFields } from "./deployRequest";

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

  it("omits blank fields", () => {
    expect(deployRequest(fields({ model: " digits@3 ", replicas: "", deployment: "", cpu: "0.5", gpus: "1" }))).toEqual(
      {
        model: "digits@3",
        trust_code: false,
        resources: { cpu: 0.5, gpus: 1 },
      },
    );
  });

  it("inherits the previous revision except its model", () => {
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

  it("has resources as in job specs", () => {
    expect(resourcesOf(fields({ cpu: "500m", memory: " ", gpus: "0" }))).toEqual({ cpu: "500m", gpus: 0 });
  });
});
