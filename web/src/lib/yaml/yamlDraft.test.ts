import { describe, expect, it } from "vitest";
import { diagnosticsOf, fieldText, withValue } from "~/pages/submit/draft";
import { parametersOf, textAt, withAt, withNewParameter, withParameter } from "~/pages/studyNew/studyDraft";
import { plainValues, readYaml } from "./yamlDraft";

const UNKNOWN = "name: a\ntemplate: {command: *foo}\nparameters:\n  lr: *foo\n";

describe("an alias while it is typed", () => {
  it("is an error without an anchor", () => {
    const { errors } = readYaml(UNKNOWN);
    expect(errors.map((error) => error.message)).toEqual([expect.stringMatching(/alias.*foo/i)]);
    expect(UNKNOWN.slice(...(errors[0]?.pos ?? [0, 0]))).toBe("*foo");
    expect(diagnosticsOf(UNKNOWN, [])).toEqual([
      { from: 28, to: 32, severity: "error", message: expect.stringContaining("foo") as string },
    ]);
  });

  it("is an error inside its own anchor, or if it expands too much", () => {
    const much = ["a: &a [1,1,1,1,1,1,1,1,1,1]"];
    for (const [own, of] of ["ba", "cb", "dc", "ed"].map((pair) => [...pair]))
      much.push(`${own}: &${own} [${Array<string>(10).fill(`*${of}`).join(", ")}]`);
    for (const text of ["command: &x [*x]\n", much.join("\n")]) {
      expect(readYaml(text).errors).toHaveLength(1);
      expect(plainValues(readYaml(text))).toBeUndefined();
    }
  });

  it("has the value of its anchor", () => {
    const document = readYaml("a: &x [1, 2]\nb: *x\n");
    expect(document.errors).toEqual([]);
    expect(plainValues(document)).toEqual({ a: [1, 2], b: [1, 2] });
    expect(fieldText(document, "b")).toBe("1 2");
  });

  it("does not break the forms or change the text", () => {
    const document = readYaml(UNKNOWN);
    expect(textAt(document, ["name"])).toBe("");
    expect(parametersOf(document)).toEqual([expect.objectContaining({ name: "lr", min: "", values: "" })]);
    expect(withAt(UNKNOWN, ["name"], "b")).toBe(UNKNOWN);
    expect(withNewParameter(UNKNOWN)).toBe(UNKNOWN);
    expect(withParameter(UNKNOWN, "lr", "when", "a=b")).toBe(UNKNOWN);
    expect(withParameter(UNKNOWN, "lr", "name", "x")).toBe(UNKNOWN);
    expect(fieldText(readYaml("name: a\nimage: *foo\n"), "image")).toBe("");
    expect(fieldText(readYaml("command: &x [*x]\n"), "command")).toBe("");
    expect(withValue("image: *foo\n", "name", "b")).toBe("image: *foo\n");
  });
});
