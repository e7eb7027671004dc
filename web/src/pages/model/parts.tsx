import { Link } from "@tanstack/react-router";
import { number } from "~/lib/format";
import { versionHeadlineMetrics } from "~/lib/headlineMetrics";

/* Stages, aliases, metrics and versions on all pages about models. */

export interface ModelKey {
  project: string;
  model: string;
}

const TONES: Record<string, string> = { production: "green", staging: "amber", archived: "grey", none: "grey" };

/** A stage and its version. */
export function StageTag({ stage, version, modelKey }: { stage: string; version: number; modelKey: ModelKey }) {
  return (
    <Link
      to="/models/$project/$model/versions/$version"
      params={{ ...modelKey, version: String(version) }}
      className={`tag nowrap tone-${TONES[stage] ?? "grey"}`}
    >
      {stage} v{version}
    </Link>
  );
}

export function StageLabel({ stage }: { stage: string | undefined }) {
  if (stage === undefined || stage === "none") return <span className="dimmer">none</span>;
  return <span className={`tag nowrap tone-${TONES[stage] ?? "grey"}`}>{stage}</span>;
}

/** Aliases with their versions. */
export function Aliases({
  aliases,
  modelKey,
  most,
}: {
  aliases: readonly [string, number][];
  modelKey: ModelKey;
  most: number;
}) {
  return (
    <>
      {aliases.slice(0, most).map(([name, version]) => (
        <Link
          key={name}
          to="/models/$project/$model/versions/$version"
          params={{ ...modelKey, version: String(version) }}
          className="tag nowrap tone-blue"
          title={`Alias ${name} points to version ${version}`}
        >
          @{name} v{version}
        </Link>
      ))}
      {aliases.length > most && <span className="dimmer small nowrap">and {aliases.length - most} more</span>}
    </>
  );
}

export function MetricTags({ metrics, most }: { metrics: Record<string, number>; most: number }) {
  const shown = versionHeadlineMetrics(metrics, most);
  const more = Object.keys(metrics).length - shown.length;
  if (shown.length === 0) return <span className="dimmer">none</span>;
  return (
    <span className="row wrapping tight">
      {shown.map(([name, value]) => (
        <span key={name} className="tag num nowrap" title={`${name} ${String(value)}`}>
          <span className="cut">{name}</span>&nbsp;{number(value)}
        </span>
      ))}
      {more > 0 && <span className="dimmer small nowrap">+{more}</span>}
    </span>
  );
}

/** "name@3" of the project's registry as a link, or a path on a volume. */
export function ModelRef({ project, name }: { project: string; name: string }) {
  const [model, version] = name.includes("/") ? [] : name.split("@");
  if (!model || !version) return <span className="mono wrap">{name}</span>;
  return (
    <Link to="/models/$project/$model/versions/$version" params={{ project, model, version }} className="mono wrap">
      {name}
    </Link>
  );
}
