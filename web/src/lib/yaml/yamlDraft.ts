import { type Document, parseDocument, visit, YAMLParseError } from "yaml";

/* A text that a person is typing: whatever it says, reading it throws nothing. */

/**
 * The text as YAML. What cannot become plain values, such as an alias without its anchor, is among `errors` with all
 * that is wrong with its grammar.
 */
export function readYaml(text: string): Document {
  const document: Document = parseDocument(text);
  if (document.errors.length > 0) return document;
  try {
    plain(document);
  } catch (failure) {
    const message = failure instanceof ReferenceError ? failure.message : "An alias stands in what it stands for.";
    document.errors.push(new YAMLParseError(aliasPlace(document), "BAD_ALIAS", message));
  }
  return document;
}

/** All of it as plain values; undefined where there can be none. */
export function plainOf(document: Document): unknown {
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

/** Of the first alias that has no anchor, else of the first one. */
function aliasPlace(document: Document): [number, number] {
  const places: [number, number][] = [];
  visit(document, {
    Alias(_, alias) {
      if (!alias.range) return undefined;
      const place: [number, number] = [alias.range[0], alias.range[1]];
      if (alias.resolve(document) === undefined) {
        places.unshift(place);
        return visit.BREAK;
      }
      places.push(place);
      return undefined;
    },
  });
  return places[0] ?? [0, 0];
}
