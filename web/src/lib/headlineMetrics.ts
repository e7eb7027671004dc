import type { MetricSeries } from "~/api/types";

/* The few metrics that summarise a job or a model version. */

const SHOWN = 6;
const MAX_WITH_PLATFORM = 4; // tiles in all, before metrics of the platform and its library are left out

const ORDER = [
  /^(?:train\w*[/_.])?loss$/i,
  /^(?:train\w*[/_.])?(?:acc|accuracy|top_?1)$/i,
  /^(?:val|valid|validation|eval|test)(?:[/_.]|$)/i,
  /loss|acc|error|perplexity|reward|f1|auc/i,
];
const PLATFORM_METRIC = /^(?:step_|ps_|system\/)/;

const LEADERS = ["chief", "worker"]; // preferred roles where several report the same metric

/** The newest value of each metric: from the newest attempt, and there from its leader. */
export function newestValues(series: readonly MetricSeries[]): Record<string, unknown> {
  const rank = ({ role }: MetricSeries) => (LEADERS.includes(role) ? LEADERS.indexOf(role) : LEADERS.length);
  const sorted = [...series].sort((a, b) => a.attempt - b.attempt || rank(b) - rank(a) || b.index - a.index);
  return Object.fromEntries(sorted.map((each) => [each.name, each.last_value]));
}

function rankOf(name: string): number {
  if (PLATFORM_METRIC.test(name)) return ORDER.length + 1;
  const found = ORDER.findIndex((pattern) => pattern.test(name));
  return found === -1 ? ORDER.length : found;
}

/** Headline metrics of a job: the user's own first, the platform's only where there is room. */
export function headlineMetrics(metrics: Record<string, unknown>): [string, unknown][] {
  const sorted = Object.entries(metrics).sort(([a], [b]) => rankOf(a) - rankOf(b));
  return sorted.filter(([name], i) => i < (PLATFORM_METRIC.test(name) ? MAX_WITH_PLATFORM : SHOWN));
}

const TEST = /^test[/_.]/i;
const TEST_DETAILS = /^test[/_.](?:rows|.*[/_.](?:low|high|baseline))$/i; // bounds and sizes, not scores

/** Headline metrics of a registered version: test metrics first, and of these the one with confidence bounds. */
export function versionHeadlineMetrics(metrics: Record<string, number>, most: number): [string, number][] {
  const rank = (name: string): number => {
    if (TEST_DETAILS.test(name)) return ORDER.length + 5;
    if (TEST.test(name)) return `${name}_low` in metrics ? 0 : 1;
    return 2 + rankOf(name);
  };
  return Object.entries(metrics)
    .sort(([a], [b]) => rank(a) - rank(b))
    .slice(0, most);
}
