import { ChevronRight } from "lucide-react";
import { useState } from "react";
import type { Share, Shares } from "~/api/types";
import { Card } from "~/components/parts";
import { pluralize, number } from "~/lib/format";

const percent = (share: number | null | undefined): string =>
  share === null || share === undefined ? "–" : `${Math.round(share * 100)} %`;
const width = (share: number): string => `${100 * Math.min(1, Math.max(0, share))}%`;

/** Colours of projects, the same everywhere on the page. */
export type Hues = ReadonlyMap<string, number>;
export const hueOf = (hues: Hues, project: string | null | undefined): string =>
  project && hues.has(project) ? `hue-${(hues.get(project) ?? 0) % 8}` : "hue-none";

export function SharesCard({ shares, hues }: { shares: Shares; hues: Hues }) {
  return (
    <Card title="Shares" aside={<Legend />} flush>
      {shares.projects.length === 0 ? (
        <p className="dim card-note">No usage and no demand.</p>
      ) : (
        <ul className="plain-list">
          {shares.projects.map((share) => (
            <ShareRow key={share.project ?? ""} share={share} hues={hues} />
          ))}
        </ul>
      )}
      <Models shares={shares} hues={hues} />
    </Card>
  );
}

function Legend() {
  return (
    <span className="row share-legend" aria-hidden="true">
      <i className="legend-allocated" /> using
      <i className="legend-due" /> fair share
      <i className="legend-past" /> recent
    </span>
  );
}

function ShareRow({ share, hues }: { share: Share; hues: Hues }) {
  const [isOpen, setOpen] = useState(false);
  const name = share.project ?? "Other projects";
  const users = share.users ?? [];
  const label =
    `${name}: using ${percent(share.allocated)} of the cluster, ` +
    `fair share ${percent(share.entitlement)}, recent ${percent(share.usage)}`;
  return (
    <li className="stack tight">
      <div className="row">
        <button
          type="button"
          className="share-name"
          aria-expanded={isOpen}
          disabled={users.length === 0}
          onClick={() => setOpen(!isOpen)}
        >
          <ChevronRight size={13} aria-hidden="true" className={isOpen ? "turned" : ""} />
          <span className={`swatch ${hueOf(hues, share.project)}`} aria-hidden="true" />
          <span className="cut strong">{name}</span>
        </button>
        <span className="grow dimmer small nowrap">weight {number(share.weight)}</span>
        <span className="num small nowrap">
          <span className="dim">using</span> <strong>{percent(share.allocated)}</strong>
          <span className="dim">, fair share {percent(share.entitlement)}</span>
        </span>
      </div>
      <ShareBar share={share} label={label} hue={hueOf(hues, share.project)} />
      <div className="dimmer small num">
        {[
          ...Object.entries(share.gpus ?? {}).map(([model, count]) => `${number(count)} × ${model}`),
          ...(share.cpus ? [`${number(share.cpus)} CPUs`] : []),
          `${pluralize(share.running, "job")} running`,
          `${share.waiting.toLocaleString()} waiting`,
          `recent ${percent(share.usage)}`,
        ].join(" · ")}
      </div>
      {isOpen && (
        <ul className="share-users">
          {users.map((user) => (
            <li key={user.user} className="row small">
              <span className="cut share-user">{user.user}</span>
              <span className="meter grow" aria-hidden="true">
                <span className={hueOf(hues, share.project)} style={{ width: width(user.allocated) }} />
              </span>
              <span className="num dim nowrap">
                {`using ${percent(user.allocated)}, recent ${percent(user.usage)}; `}
                {`${user.running} running, ${user.waiting} waiting`}
              </span>
            </li>
          ))}
        </ul>
      )}
    </li>
  );
}

function ShareBar({ share, label, hue }: { share: Share; label: string; hue: string }) {
  return (
    <div
      className="share-bar"
      role="meter"
      aria-label={label}
      aria-valuenow={Math.round(100 * Math.min(1, share.allocated))}
      aria-valuemin={0}
      aria-valuemax={100}
      title={label}
    >
      <span className={`share-allocated ${hue}`} style={{ width: width(share.allocated) }} />
      {share.usage != null && <span className="share-past" style={{ width: width(share.usage) }} />}
      <span className="share-due" style={{ left: width(share.entitlement) }} />
    </div>
  );
}

/** GPUs in use by model and project. */
function Models({ shares, hues }: { shares: Shares; hues: Hues }) {
  const models = Object.entries(shares.gpus ?? {});
  if (models.length === 0) return null;
  return (
    <ul className="models" aria-label="GPU models">
      {models.map(([model, all]) => {
        const parts = shares.projects
          .map((share) => ({ project: share.project, count: share.gpus?.[model] ?? 0 }))
          .filter((part) => part.count > 0);
        const allocated = parts.reduce((sum, part) => sum + part.count, 0);
        const label = [
          ...parts.map((part) => `${part.project ?? "other projects"} ${number(part.count)}`),
          `free ${number(Math.max(0, all - allocated))}`,
        ].join(", ");
        return (
          <li key={model} title={label}>
            <div className="row small">
              <span className="grow mono">{model}</span>
              <span className="num dim">
                {number(allocated)} of {number(all)} in use
              </span>
            </div>
            <div className="stacked" role="img" aria-label={`${model}: ${label}`}>
              {parts.map((part) => (
                <span
                  key={part.project ?? ""}
                  className={hueOf(hues, part.project)}
                  style={{ width: width(part.count / all) }}
                />
              ))}
            </div>
          </li>
        );
      })}
    </ul>
  );
}
