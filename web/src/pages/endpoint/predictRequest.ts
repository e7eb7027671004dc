/* Prediction requests written by hand. */

/** A short message if a text is not valid JSON. */
export function jsonError(text: string): string | undefined {
  if (text.trim() === "") return 'Write a JSON body, such as {"instances": [[1, 2]]}.';
  try {
    JSON.parse(text);
    return undefined;
  } catch (error) {
    return `Not JSON: ${error instanceof Error ? error.message : String(error)}`;
  }
}

/** The request as a curl command, with the token of the shell's user. */
export function curlOf(address: string, body: string): string {
  const quoted = (text: string) => `'${text.replaceAll("'", `'\\''`)}'`;
  let short = body;
  try {
    short = JSON.stringify(JSON.parse(body));
  } catch {
    // Not valid JSON: unchanged.
  }
  return [
    `curl ${quoted(address)}`,
    '-H "Authorization: Bearer $TRAINMASTER_TOKEN"',
    "-H 'Content-Type: application/json'",
    `-d ${quoted(short)}`,
  ].join(" ");
}
