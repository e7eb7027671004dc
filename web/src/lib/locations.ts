/* Where a place on a volume is to be seen in these pages. */

const OUTPUT = /^[^/]+\/[^/]+\/(job-[0-9a-z]{6,})(?:\/(.*))?$/;

/** Of volume/path: the job whose output it lies in, and where there; `null` of any other place. */
export function outputAt(location: string): { job: string; path: string } | null {
  const found = OUTPUT.exec(location);
  return found?.[1] ? { job: found[1], path: found[2] ?? "" } : null;
}

/** Who has a version deployed, as the registry names them: "endpoint digits, deployed model default". */
export function endpointOf(holder: string): { endpoint: string; deployment: string } | null {
  const found = /^endpoint ([^,\s]+), deployed model ([^,\s]+)$/.exec(holder);
  return found?.[1] && found[2] ? { endpoint: found[1], deployment: found[2] } : null;
}
