import { RE2JS } from "re2js";

/* The server searches with RE2, whose time is linear in the text. Highlighting must be linear, too: a browser's own
 * regular expressions backtrack, and an expression in a link could freeze the tab. */

const MAX_MATCHES = 200; // per span of a line

export type Finder = (text: string) => [number, number][];

/** Compiles an RE2 expression to a function that returns its matches (from, to); `null`: a syntax error. */
export function compileFinder(expression: string): Finder | null {
  let compiled: RE2JS;
  try {
    compiled = RE2JS.compile(expression);
  } catch {
    return null;
  }
  return (text) => {
    const found: [number, number][] = [];
    const matcher = compiled.matcher(text);
    while (found.length < MAX_MATCHES && matcher.find()) {
      if (matcher.end() > matcher.start()) found.push([matcher.start(), matcher.end()]);
    }
    return found;
  };
}
