import { type Document, parseDocument, visit, YAMLParseError } from "yaml";

/* Parsing of YAML while it is typed: never throws. */

/**
 * The text as YAML. Content without plain values, such as an alias without its anchor, is among `errors`, next to
 * syntax errors.
 */
export function readYaml(text: string): Document {
  const document: Document = parseDocument(text);
  if (document.errors.length > 0) return document;
  try {
    plain(document);
  } catch (failure) {
    const message = failure instanceof ReferenceError ? failure.message : "An alias refers to a node that contains it.";
    document.errors.push(new YAMLParseError(aliasRange(document), "BAD_ALIAS", message));
  }
  return document;
}

/** The document as plain values; undefined if it has none. */
export function plainValues(document: Document): unknown {
  try {
    return plain(document);
  } catch {
    return undefined;
  }
}

function plain(document: Document): unknown {
  const values: unknown = document.toJS();
  JSON.stringify(values); // The library makes a circle of `a: &x [*x]`; JSON has none.
  return values;
}

/** Range of the first alias without an anchor, else of the first alias. */
function aliasRange(document: Document): [number, number] {
  const ranges: [number, number][] = [];
  visit(document, {
    Alias(_, alias) {
      if (!alias.range) return undefined;
      const range: [number, number] = [alias.range[0], alias.range[1]];
      if (alias.resolve(document) === undefined) {
        ranges.unshift(range);
        return visit.BREAK;
      }
      ranges.push(range);
      return undefined;
    },
  });
  return ranges[0] ?? [0, 0];
}
