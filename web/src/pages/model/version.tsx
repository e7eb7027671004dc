import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import { ChevronRight, CircleAlert, Hourglass, ShieldCheck } from "lucide-react";
import { modelHistoryQuery, modelQuery, versionQuery, versionsQuery } from "~/api/models";
import type { ModelVersionDetail } from "~/api/types";
import { Skeleton, Card, CopyButton, Failure, Sentence } from "~/components/parts";
import { State } from "~/components/state";
import { Ago, LocalTime } from "~/components/time";
import { bytes, pluralize, withFullStop, number } from "~/lib/format";
import { parseHolder } from "~/lib/locations";
import { AliasCard } from "./aliases";
import { VersionFiles } from "./files";
import { Changes } from "./history";
import { Lineage } from "./lineage";
import { StageLabel } from "./parts";
import { VersionActions } from "./versionActions";

const route = getRouteApi("/shell/models/$project/$model/versions/$version");
const FEW = 12; // changes

/** A version with its lineage, files and actions. */
export function VersionPage() {
  const { project, model: name, version: ref } = route.useParams();
  const { data: model } = useQuery(modelQuery(project, name));
  const { data: versions } = useQuery(versionsQuery(project, name));
  const { data: version, error, isPending, refetch } = useQuery(versionQuery(project, name, ref));
  const { data: history } = useQuery(modelHistoryQuery(project, name));
  const changes = (history?.items ?? []).filter((change) => change.version === version?.version).slice(0, FEW);
  return (
    <div className="page-body">
      <div className="row wrapping">
        <nav aria-label="Version" className="crumbs grow">
          <Link to="/models/$project/$model" params={{ project, model: name }}>
            Versions
          </Link>
          <ChevronRight size={13} aria-hidden="true" />
          <h2 className="num">v{version?.version ?? ref}</h2>
          {version && <State state={version.state} pill />}
          {version?.stage && version.stage !== "none" && <StageLabel stage={version.stage} />}
          {version?.is_protected && (
            <span className="state pill tone-violet">
              <ShieldCheck size={14} aria-hidden="true" /> protected
            </span>
          )}
        </nav>
        {version && <VersionActions version={version} />}
      </div>
      {isPending ? (
        <Skeleton rows={8} height={24} />
      ) : version === undefined ? (
        <Failure error={error} retry={() => void refetch()} />
      ) : (
        <>
          <WaitOrEndNote version={version} />
          {version.description && <p className="wrap prose">{version.description}</p>}
          <Metrics version={version} />
          <div className="columns">
            <div className="stack large">
              <Lineage version={version} />
              <VersionFiles version={version} />
            </div>
            <div className="stack large">
              {model && <AliasCard model={model} versions={versions?.items ?? []} only={version.version} />}
              <VersionFacts version={version} />
              {changes.length > 0 && (
                <Card title="History">
                  <Changes modelKey={{ project, model: name }} changes={changes} />
                </Card>
              )}
            </div>
          </div>
        </>
      )}
    </div>
  );
}

/** What the version waits for, the progress of its copy, or why it failed. */
function WaitOrEndNote({ version }: { version: ModelVersionDetail }) {
  if (version.state === "ready") return null;
  const share = version.size_bytes ? Math.min(1, (version.done_bytes ?? 0) / version.size_bytes) : null;
  const [tone, Icon] = version.state === "failed" ? (["bad", CircleAlert] as const) : (["warn", Hourglass] as const);
  const text =
    version.reason ||
    (version.state === "waiting"
      ? "Waiting for its job to succeed."
      : `Copying files: ${bytes(version.done_bytes)}${version.size_bytes ? ` of ${bytes(version.size_bytes)}` : ""}.`);
  return (
    <div className={`note ${tone}`} role="status">
      <Icon size={16} aria-hidden="true" />
      <div className="stack tight grow">
        <div>
          <Sentence text={withFullStop(text)} />
        </div>
        {version.state === "registering" && share !== null && (
          <div className="meter" aria-hidden="true">
            <span style={{ width: `${100 * share}%` }} />
          </div>
        )}
      </div>
    </div>
  );
}

function Metrics({ version }: { version: ModelVersionDetail }) {
  const metrics = Object.entries(version.metrics ?? {});
  if (metrics.length === 0) return null;
  return (
    <section className="card" aria-label="Metrics">
      <div className="tiles narrow">
        {version.lineage?.step != null && (
          <div>
            <div className="dimmer">step</div>
            <div className="value">{number(version.lineage.step)}</div>
          </div>
        )}
        {metrics.slice(0, 8).map(([name, value]) => (
          <div key={name}>
            <div className="dimmer cut" title={name}>
              {name}
            </div>
            <div className="value cut" title={String(value)}>
              {number(value)}
            </div>
          </div>
        ))}
        {metrics.length > 8 && (
          <div>
            <div className="dimmer">others</div>
            <Link to="/jobs/$job/metrics" params={{ job: version.source.job ?? "" }}>
              {pluralize(metrics.length - 8, "more metric")}
            </Link>
          </div>
        )}
      </div>
    </section>
  );
}

function VersionFacts({ version }: { version: ModelVersionDetail }) {
  const servers = version.served_by ?? [];
  const pinnedBy = (version.used_by ?? []).filter((holder) => !servers.includes(holder));
  const labels = Object.entries(version.labels ?? {});
  return (
    <Card title="Version">
      <dl className="facts">
        <dt>Registered</dt>
        <dd>
          <Ago at={version.created_at} /> by {version.user}
        </dd>
        {version.ready_at && (
          <>
            <dt>Ready</dt>
            <dd>
              <LocalTime at={version.ready_at} />
            </dd>
          </>
        )}
        {version.format && (
          <>
            <dt>Format</dt>
            <dd>{version.format}</dd>
          </>
        )}
        <dt>Size</dt>
        <dd className="num">
          {bytes(version.size_bytes)}
          {version.file_count != null && <span className="dimmer"> in {pluralize(version.file_count, "file")}</span>}
        </dd>
        <dt>Deployed to</dt>
        <dd>
          {servers.length === 0 ? (
            <span className="dimmer">none</span>
          ) : (
            servers.map((holder) => <Holder key={holder} project={version.project} holder={holder} />)
          )}
        </dd>
        {pinnedBy.length > 0 && (
          <>
            <dt title="A possible rollback target there, so it cannot be deleted.">Rollback target of</dt>
            <dd>
              {pinnedBy.map((holder) => (
                <Holder key={holder} project={version.project} holder={holder} />
              ))}
            </dd>
          </>
        )}
        {version.location && (
          <>
            <dt>Location</dt>
            <dd>
              <span className="mono wrap">{version.location}</span> <CopyButton text={version.location} />
            </dd>
          </>
        )}
        {version.digest && (
          <>
            <dt>Digest</dt>
            <dd className="mono wrap" title="Digest of all files">
              {version.digest}
            </dd>
          </>
        )}
        {labels.length > 0 && (
          <>
            <dt>Labels</dt>
            <dd className="row wrapping">
              {labels.map(([key, value]) => (
                <span key={key} className="tag">
                  {value ? `${key}=${value}` : key}
                </span>
              ))}
            </dd>
          </>
        )}
      </dl>
    </Card>
  );
}

function Holder({ project, holder }: { project: string; holder: string }) {
  const found = parseHolder(holder);
  if (found === null) return <div>{holder}</div>;
  return (
    <div className="row wrapping tight">
      <Link to="/endpoints/$project/$endpoint" params={{ project, endpoint: found.endpoint }}>
        {found.endpoint}
      </Link>
      <span className="dimmer">as {found.deployment}</span>
    </div>
  );
}
