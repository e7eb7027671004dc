/* Terminal colours (SGR) as spans; every other control sequence is dropped. Text only ever becomes text nodes. */

export interface Span {
  text: string;
  className: string;
}

const NAMES = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];
// SGR; OSC titles and links up to their end; other escape sequences; and control characters without a glyph.
const SEQUENCE =
  /\x1b\[([0-9;:]*)m|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b\[[0-9;?]*[A-Za-z]|\x1b.|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]/g;

interface Style {
  colour: string;
  isBold: boolean;
  isDim: boolean;
}

export function spansOf(line: string): Span[] {
  if (!line.includes("\x1b") && !/\r/.test(line)) return [{ text: line, className: "" }];
  // A progress bar rewrites its line: a terminal shows the text after the last carriage return.
  const shown = line.replace(/\r+$/, "").replace(/^.*\r/s, "");
  const spans: Span[] = [];
  const style: Style = { colour: "", isBold: false, isDim: false };
  let from = 0;
  for (const match of shown.matchAll(SEQUENCE)) {
    push(spans, shown.slice(from, match.index), style);
    from = match.index + match[0].length;
    if (match[1] !== undefined) apply(style, match[1]);
  }
  push(spans, shown.slice(from), style);
  return spans;
}

function push(spans: Span[], text: string, style: Style): void {
  if (text === "") return;
  const names = [style.colour && `ansi-${style.colour}`, style.isBold && "ansi-bold", style.isDim && "ansi-dim"];
  spans.push({ text, className: names.filter(Boolean).join(" ") });
}

function apply(style: Style, codes: string): void {
  const numbers = codes.split(/[;:]/).map((code) => (code === "" ? 0 : Number(code)));
  for (let i = 0; i < numbers.length; i += 1) {
    const code = numbers[i] ?? 0;
    if (code === 0) Object.assign(style, { colour: "", isBold: false, isDim: false });
    else if (code === 1) style.isBold = true;
    else if (code === 2) style.isDim = true;
    else if (code === 22) Object.assign(style, { isBold: false, isDim: false });
    else if (code === 39) style.colour = "";
    else if (code >= 30 && code <= 37) style.colour = NAMES[code - 30] ?? "";
    else if (code >= 90 && code <= 97) style.colour = NAMES[code - 90] ?? "";
    else if (code === 38 || code === 48) {
      // 256 colours and true colours: the nearest of the eight is not worth its code; the text stays plain.
      i += numbers[i + 1] === 5 ? 2 : 4;
    }
  }
}
