import { RE2JS } from "re2js";

/* The server searches with RE2, whose time is linear in the text. What marks its finds must be, too: a browser's own
 * expressions try every way to match, and one that was sent in a link would freeze the tab. */

const MAX_MATCHES = 200; // marks in one piece of a line

export type Finder = (text: string) => [number, number][];

/** Tells where (from, to) an expression of RE2 finds something; `null`: it is none. */
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
