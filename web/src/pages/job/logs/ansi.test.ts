import { describe, expect, it } from "vitest";
import { spansOf } from "./ansi";

describe("terminal lines", () => {
  it("become coloured text", () => {
    expect(spansOf("a \x1b[1;31mred\x1b[0m \x1b]0;title\x07b\x1b[2K")).toEqual([
      { text: "a ", className: "" },
      { text: "red", className: "ansi-red ansi-bold" },
      { text: " ", className: "" },
      { text: "b", className: "" },
    ]);
    expect(spansOf("10%\r50%\r100%\r")).toEqual([{ text: "100%", className: "" }]);
    expect(spansOf("<b>\x1b[38;5;9mx")).toEqual([
      { text: "<b>", className: "" },
      { text: "x", className: "" },
    ]);
  });
});
