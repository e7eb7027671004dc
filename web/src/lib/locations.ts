/* From names of the API to pages that show them. */

const OUTPUT = /^[^/]+\/[^/]+\/(job-[0-9a-z]{6,})(?:\/(.*))?$/;

/** For volume/path in a job's output: the job, and the path in the output; else `null`. */
export function jobOutputAt(location: string): { job: string; path: string } | null {
  const found = OUTPUT.exec(location);
  return found?.[1] ? { job: found[1], path: found[2] ?? "" } : null;
}

/** Parses the registry's name of a deployment: "endpoint digits, deployed model default". */
export function parseHolder(holder: string): { endpoint: string; deployment: string } | null {
  const found = /^endpoint ([^,\s]+), deployed model ([^,\s]+)$/.exec(holder);
  return found?.[1] && found[2] ? { endpoint: found[1], deployment: found[2] } : null;
}
