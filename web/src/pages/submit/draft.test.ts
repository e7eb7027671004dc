import { describe, expect, it } from "vitest";
import type { ForecastOption } from "~/api/types";
import { specYaml } from "~/lib/yaml/specYaml";
import { readYaml } from "~/lib/yaml/yamlDraft";
import { diagnosticsOf, fieldText, warningsIn, withOption, withValue } from "./draft";

const option = (field: string, value: number | string | null, ...roles: string[]): ForecastOption => ({
  code: "x",
  sentence: "With this it would start now.",
  roles,
  field,
  value,
});

describe("warnings", () => {
  it("are read from the header, with quotes and letters outside of ASCII", () => {
    const header = String.raw`299 - "write \"-np 2\", or more.", 299 - "set \u00fc: a, b"`;
    expect(warningsIn(header)).toEqual(['write "-np 2", or more.', "set \u00fc: a, b"]);
    expect(warningsIn(null)).toEqual([]);
  });
});

describe("an environment", () => {
  it("is written field by field, requirements as lines", () => {
    let text = withValue("name: a # mine\n", "environment.venv", "/opt/venv");
    expect(text).toBe("name: a # mine\nenvironment:\n  venv: /opt/venv\n");
    text = withValue(text, "environment.requirements", "numpy>=2\neinops\n");
    expect(fieldText(readYaml(text), "environment.requirements")).toBe("numpy>=2\neinops\n");
    text = withValue(withValue(text, "environment.requirements", ""), "environment.venv", "");
    expect(text).toBe("name: a # mine\n");
    expect(withValue(text, "environment.conda", "")).toBe(text);
  });

  it("is read from a list", () => {
    const document = readYaml("environment: {requirements: [numpy, einops], conda: vision}\n");
    expect(fieldText(document, "environment.requirements")).toBe("numpy\neinops");
    expect(fieldText(document, "environment.conda")).toBe("vision");
    expect(fieldText(document, "environment.python")).toBe("");
  });
});

describe("an alternative of the planner", () => {
  it("is written into a shorthand and preserves comments", () => {
    expect(withOption("name: a # mine\nworkers: 4\n", option("replicas", 2, "worker"))).toBe(
      "name: a # mine\nworkers: 2\n",
    );
    expect(withOption("ps: 4\n", option("replicas", 2, "ps"))).toBe("ps: 2\n");
    expect(withOption("gpus: 4\n", option("gpus", 1, "chief", "worker"))).toBe("gpus: 1\n");
    expect(withOption("gpu_type: [H100, A100]\n", option("gpu_type", "L4", "worker"))).toBe("gpu_type: L4\n");
  });

  it("is written at its role", () => {
    expect(withOption("roles:\n  worker: 4\n", option("replicas", 2, "worker"))).toBe("roles:\n  worker: 2\n");
    expect(withOption("roles:\n  worker: {replicas: 4, resources: {gpus: 2}}\n", option("gpus", 1, "worker"))).toBe(
      "roles:\n  worker: { replicas: 4, resources: { gpus: 1 } }\n",
    );
    expect(withOption("cpu: 8\nroles:\n  worker: 4\n", option("cpu", 2, "worker"))).toBe(
      "cpu: 8\nroles:\n  worker:\n    replicas: 4\n    resources:\n      cpu: 2\n",
    );
  });

  it("lowers the minimum of an elastic gang", () => {
    expect(withOption("workers: {min: 3, max: 4}\n", option("replicas", 1, "worker"))).toBe(
      "workers: { min: 1, max: 4 }\n",
    );
    expect(withOption("roles:\n  worker: {replicas: 4, min_replicas: 3}\n", option("replicas", 1, "worker"))).toBe(
      "roles:\n  worker: { replicas: 4, min_replicas: 1 }\n",
    );
  });

  it("removes a field, and does not change a text with syntax errors", () => {
    expect(withOption("name: a\nnode_selector: {pool: x}\n", option("node_selector", null))).toBe("name: a\n");
    expect(withOption("name: [\n", option("gpus", 1, "worker"))).toBe("name: [\n");
  });
});

describe("the form and its text", () => {
  it("changes a field and preserves comments and order", () => {
    const text = "# mine\nname: a # why\nworkers: 2\n";
    expect(withValue(text, "workers", "4")).toBe("# mine\nname: a # why\nworkers: 4\n");
    expect(withValue(text, "workers", "")).toBe("# mine\nname: a # why\n");
    expect(withValue("name: [", "workers", "4")).toBe("name: ["); // what cannot be read is not touched
  });

  it("maps errors to positions", () => {
    const text = "name: a\nroles:\n  worker:\n    replicas: 0\n";
    const [found] = diagnosticsOf(text, [{ path: "roles.worker.replicas", message: "too few", hint: null }]);
    expect(text.slice(found?.from, found?.to).trim()).toBe("0");
  });

  it("writes a spec without its defaults", () => {
    const spec = {
      name: "a",
      project: "default",
      command: ["x"],
      env: {},
      priority: 50,
      image: null,
      roles: { worker: { replicas: 2, resources: { cpu: null } } },
    };
    expect(specYaml(spec)).toBe("name: a\ncommand:\n  - x\nroles:\n  worker:\n    replicas: 2\n");
  });
});
