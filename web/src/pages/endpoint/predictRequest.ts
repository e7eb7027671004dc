/* A request that somebody writes by hand. */

/** Why a text is no JSON, in a few words; undefined where it is. */
export function jsonError(text: string): string | undefined {
  if (text.trim() === "") return 'Write a JSON body, such as {"instances": [[1, 2]]}.';
  try {
    JSON.parse(text);
    return undefined;
  } catch (error) {
    return `Not JSON: ${error instanceof Error ? error.message : String(error)}`;
  }
}

/** The same request for a shell. The token is whoever's who runs it. */
export function curlOf(address: string, body: string): string {
  const quoted = (text: string) => `'${text.replaceAll("'", `'\\''`)}'`;
  let short = body;
  try {
    short = JSON.stringify(JSON.parse(body));
  } catch {
    // As it is.
  }
  return [
    `curl ${quoted(address)}`,
    '-H "Authorization: Bearer $TRAINMASTER_TOKEN"',
    "-H 'Content-Type: application/json'",
    `-d ${quoted(short)}`,
  ].join(" ");
}
