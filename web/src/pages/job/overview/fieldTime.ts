/* Values of datetime-local inputs, which have no time zone: they are in the browser's local time. */

/** The value of the input. */
export function toFieldTime(ms: number): string {
  const at = new Date(ms);
  return new Date(ms - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}

/** The time in UTC, for the API; null for an empty input. */
export function toUtcTime(text: string): string | null {
  const ms = text === "" ? Number.NaN : Date.parse(text);
  return Number.isNaN(ms) ? null : new Date(ms).toISOString();
}
