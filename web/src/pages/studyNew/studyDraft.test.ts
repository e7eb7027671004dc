import { describe, expect, it } from "vitest";
import { parseDocument } from "yaml";
import {
  listOf,
  parametersOf,
  textAt,
  typed,
  whenOf,
  withAt,
  withNewParameter,
  withoutParameter,
  withParameter,
} from "./studyDraft";

const TEXT = `name: a # mine
template:
  command: python train.py # the job
parameters:
  lr: {type: float, min: 0.00001, max: 0.1, scale: log}
  opt: {type: categorical, values: [sgd, adam]}
  momentum: {type: float, min: 0, max: 0.99, when: {opt: sgd}}
stopping: asha
`;
const rows = (text: string) => parametersOf(parseDocument(text));

describe("a study's text and its form", () => {
  it("shows parameters as typed", () => {
    expect(rows(TEXT)).toEqual([
      { name: "lr", type: "float", min: "0.00001", max: "0.1", scale: "log", values: "", when: "" },
      { name: "opt", type: "categorical", min: "", max: "", scale: "linear", values: "sgd, adam", when: "" },
      { name: "momentum", type: "float", min: "0", max: "0.99", scale: "linear", values: "", when: "opt=sgd" },
    ]);
    expect(rows("name: a\n")).toEqual([]);
    expect(rows("parameters: 3\n")).toEqual([]);
  });

  it("sets fields and preserves comments", () => {
    expect(withAt(TEXT, ["template", "command"], "python b.py")).toBe(TEXT.replace("python train.py", "python b.py"));
    expect(withAt(TEXT, ["name"], "b")).toBe(TEXT.replace("name: a", "name: b"));
    expect(withAt(TEXT, ["budget", "trials"], 20)).toBe(`${TEXT}budget: {trials: 20}\n`);
    expect(withAt(TEXT, ["budget", "trials"], "")).toBe(TEXT);
    expect(withParameter(TEXT, "lr", "max", "0.5")).toBe(TEXT.replace("max: 0.1,", "max: 0.5,"));
    expect(withParameter(TEXT, "lr", "scale", "linear")).toBe(TEXT.replace(", scale: log", ""));
    expect(textAt(parseDocument(TEXT), ["parameters", "lr", "min"])).toBe("0.00001");
  });

  it("expands a shorthand to a map", () => {
    expect(withAt(TEXT, ["stopping", "rule"], "median")).toContain("stopping: {rule: median}");
    expect(withAt("", ["template", "command"], "true")).toBe('template: {command: "true"}\n');
  });

  it("removes fields that do not apply to a new type", () => {
    expect(withParameter(TEXT, "lr", "type", "categorical")).toContain("lr: {type: categorical}");
    expect(withParameter(TEXT, "opt", "type", "integer")).toContain("opt: {type: integer}");
    expect(withParameter(TEXT, "lr", "type", "integer")).toContain(
      "lr: {type: integer, min: 0.00001, max: 0.1, scale: log}",
    );
  });

  it("renames a parameter also in conditions, and never to an existing name", () => {
    const renamed = withParameter(TEXT, "opt", "name", "optimizer");
    expect(rows(renamed).map((row) => row.name)).toEqual(["lr", "optimizer", "momentum"]);
    expect(rows(renamed)[2]?.when).toBe("optimizer=sgd");
    expect(withParameter(TEXT, "opt", "name", "lr")).toBe(TEXT);
    expect(withParameter(TEXT, "opt", "name", " ")).toBe(TEXT);
  });

  it("adds and removes parameters", () => {
    const more = withNewParameter(TEXT);
    expect(rows(more).at(-1)).toMatchObject({ name: "p4", type: "float", min: "0", max: "1" });
    expect(rows(withoutParameter(more, "p4"))).toEqual(rows(TEXT));
    expect(rows(withNewParameter("name: a\n"))).toHaveLength(1);
  });

  it("reads lists and conditions, and tells text from numbers", () => {
    expect(listOf("sgd, adam")).toEqual(["sgd", "adam"]);
    expect(listOf("[16, 32]")).toEqual([16, 32]);
    expect(listOf('"1", true, 2')).toEqual(["1", true, 2]);
    expect(listOf("a: b, [")).toEqual(["a: b", "["]);
    expect(whenOf("opt=sgd|adam, depth=2")).toEqual({ opt: ["sgd", "adam"], depth: 2 });
    expect(whenOf("opt=")).toEqual({});
    const text = withParameter(TEXT, "opt", "values", '"1", 2');
    expect(rows(text)[1]?.values).toBe('"1", 2');
    expect(rows(withParameter(TEXT, "momentum", "when", "opt=sgd|adam"))[2]?.when).toBe("opt=sgd|adam");
    expect(rows(withParameter(TEXT, "momentum", "when", ""))[2]?.when).toBe("");
    expect([typed("1e-5"), typed("0."), typed("-"), typed("12h"), typed("")]).toEqual([1e-5, 0, "-", "12h", ""]);
  });

  it("does not change a text with syntax errors", () => {
    expect(withAt("name: [\n", ["name"], "b")).toBe("name: [\n");
    expect(withNewParameter("a: {\n")).toBe("a: {\n");
    expect(withAt("- 1\n", ["name"], "b")).toBe("- 1\n");
  });
});
