import { expect, it } from "vitest";
import { curlOf, jsonError } from "./predictRequest";

it("quotes a request for a shell", () => {
  expect(jsonError('{"instances": [1]}')).toBeUndefined();
  expect(jsonError("{")).toMatch(/^Not JSON/);
  expect(jsonError(" ")).toMatch(/^Write a JSON body/);
  expect(curlOf("http://h/p:predict", '{"a": "it\'s"}')).toContain(`-d '{"a":"it'\\''s"}'`);
});
