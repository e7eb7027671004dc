import type { MetricSeries } from "~/api/types";

/* Which of a job's newest metrics tell most of how it goes. */

const SHOWN = 6;
const OF_PLATFORM = 4; // as many tiles in all, before figures of the training library's own steps are left out

const ORDER = [
  /^(?:train\w*[/_.])?loss$/i,
  /^(?:train\w*[/_.])?(?:acc|accuracy|top_?1)$/i,
  /^(?:val|valid|validation|eval|test)(?:[/_.]|$)/i,
  /loss|acc|error|perplexity|reward|f1|auc/i,
];
const PLATFORMS = /^(?:step_|ps_|system\/)/;

const LEADERS = ["chief", "worker"]; // whose word counts when several tell the same metric

/** The newest value of each metric: of the newest attempt, and there of its leader. */
export function newestValues(series: readonly MetricSeries[]): Record<string, unknown> {
  const place = ({ role }: MetricSeries) => (LEADERS.includes(role) ? LEADERS.indexOf(role) : LEADERS.length);
  const sorted = [...series].sort((a, b) => a.attempt - b.attempt || place(b) - place(a) || b.index - a.index);
  return Object.fromEntries(sorted.map((each) => [each.name, each.last_value]));
}

function placeOf(name: string): number {
  if (PLATFORMS.test(name)) return ORDER.length + 1;
  const found = ORDER.findIndex((pattern) => pattern.test(name));
  return found === -1 ? ORDER.length : found;
}

/** The few to be seen at once: the user's own first, and what the library measures of itself only where there is room. */
export function telling(metrics: Record<string, unknown>): [string, unknown][] {
  const sorted = Object.entries(metrics).sort(([a], [b]) => placeOf(a) - placeOf(b));
  return sorted.filter(([name], i) => i < (PLATFORMS.test(name) ? OF_PLATFORM : SHOWN));
}

const TEST = /^test[/_.]/i;
const OF_TEST_BESIDE = /^test[/_.](?:rows|.*[/_.](?:low|high|baseline))$/i; // bounds and sizes, not scores of their own

/** The same of a registered version: how it did on data that it has not seen comes first, the metric it was chosen by before the others. */
export function tellingOfVersion(metrics: Record<string, number>, most: number): [string, number][] {
  const place = (name: string): number => {
    if (OF_TEST_BESIDE.test(name)) return ORDER.length + 5;
    if (TEST.test(name)) return `${name}_low` in metrics ? 0 : 1;
    return 2 + placeOf(name);
  };
  return Object.entries(metrics)
    .sort(([a], [b]) => place(a) - place(b))
    .slice(0, most);
}
