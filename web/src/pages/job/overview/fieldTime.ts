/* Moments in a field of the kind datetime-local, which knows no time zone: it is by the clock of who looks. */

/** As the field holds it. */
export function toFieldTime(ms: number): string {
  const at = new Date(ms);
  return new Date(ms - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}

/** For the API, in UTC; null where the field holds none. */
export function toUtcTime(text: string): string | null {
  const ms = text === "" ? Number.NaN : Date.parse(text);
  return Number.isNaN(ms) ? null : new Date(ms).toISOString();
}
