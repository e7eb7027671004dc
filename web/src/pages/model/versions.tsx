import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link } from "@tanstack/react-router";
import { GitCompareArrows, Package, RadioTower, ShieldCheck } from "lucide-react";
import { useState } from "react";
import { modelQuery, versionsQuery } from "~/api/models";
import type { Model, ModelVersion } from "~/api/types";
import { Skeleton, Card, Empty, Failure, TableBox } from "~/components/parts";
import { State } from "~/components/state";
import { Ago, LocalTime } from "~/components/time";
import { bytes } from "~/lib/format";
import { AliasCard } from "./aliases";
import { MetricTags, StageLabel } from "./parts";

const route = getRouteApi("/shell/models/$project/$model");
const MOST = 8; // versions in one comparison

/** All versions of a model, newest first. */
export function Versions() {
  const { project, model: name } = route.useParams();
  const { data: model } = useQuery(modelQuery(project, name));
  const query = useQuery(versionsQuery(project, name));
  const versions = query.data?.items ?? [];
  if (model === undefined) return null;
  return (
    <div className="page-body">
      {model.description && <p className="wrap prose">{model.description}</p>}
      <div className="columns">
        {query.isPending ? (
          <Skeleton rows={6} height={30} />
        ) : query.data === undefined ? (
          <Failure error={query.error} retry={() => void query.refetch()} />
        ) : (
          <VersionTable project={project} model={name} versions={versions} isCut={query.data.next_cursor != null} />
        )}
        <div className="stack large">
          <AliasCard model={model} versions={versions} />
          <ModelFacts model={model} />
        </div>
      </div>
    </div>
  );
}

interface TableProps {
  project: string;
  model: string;
  versions: readonly ModelVersion[];
  isCut: boolean;
}

function VersionTable({ project, model, versions, isCut }: TableProps) {
  const [chosen, setChosen] = useState<readonly number[]>([]);
  const toggle = (modelKey: number) =>
    setChosen((before) =>
      before.includes(modelKey) ? before.filter((each) => each !== modelKey) : [...before, modelKey].slice(-MOST),
    );
  return (
    <section className="card" aria-label="Versions">
      <header>
        <h2 className="grow">Versions</h2>
        {isCut && <span className="dimmer small">newest {versions.length.toLocaleString()}</span>}
        {chosen.length >= 2 ? (
          <Link
            to="/models/$project/$model/compare"
            params={{ project, model }}
            search={{ versions: [...chosen].sort((a, b) => a - b).join(",") }}
            className="button small primary"
          >
            <GitCompareArrows size={14} aria-hidden="true" /> Compare {chosen.length}
          </Link>
        ) : (
          versions.length > 1 && <span className="dimmer small">Select two or more to compare</span>
        )}
      </header>
      {versions.length === 0 ? (
        <Empty icon={Package} title="No versions yet">
          <p>Open a job that has written a model or a checkpoint, and press Register as model.</p>
        </Empty>
      ) : (
        <TableBox label="Versions">
          <table className="table">
            <thead>
              <tr>
                <th>
                  <span className="only-read">Choose</span>
                </th>
                <th>Version</th>
                <th>Stage</th>
                <th>Metrics</th>
                <th className="right">Size</th>
                <th>Source</th>
                <th>Age</th>
              </tr>
            </thead>
            <tbody>
              {versions.map((version) => (
                <Row
                  key={version.id}
                  modelKey={{ project, model }}
                  version={version}
                  isChosen={chosen.includes(version.version)}
                  toggle={() => toggle(version.version)}
                />
              ))}
            </tbody>
          </table>
        </TableBox>
      )}
    </section>
  );
}

interface RowProps {
  modelKey: { project: string; model: string };
  version: ModelVersion;
  isChosen: boolean;
  toggle: () => void;
}

function Row({ modelKey, version, isChosen, toggle }: RowProps) {
  const { source } = version;
  return (
    <tr>
      <td>
        <input
          type="checkbox"
          className="check"
          aria-label={`Choose version ${version.version}`}
          checked={isChosen}
          onChange={toggle}
        />
      </td>
      <td>
        <span className="row wrapping">
          <Link
            to="/models/$project/$model/versions/$version"
            params={{ ...modelKey, version: String(version.version) }}
            className="strong num"
          >
            v{version.version}
          </Link>
          <State state={version.state} />
          {(version.aliases ?? []).map((alias) => (
            <span key={alias} className="tag tone-blue">
              @{alias}
            </span>
          ))}
          {version.is_protected && <ShieldCheck size={14} className="tone-violet" role="img" aria-label="protected" />}
          {(version.served_by ?? []).length > 0 && (
            <RadioTower
              size={14}
              className="tone-green"
              role="img"
              aria-label={`serves: ${(version.served_by ?? []).join("; ")}`}
            />
          )}
        </span>
        {version.reason && version.state !== "ready" && <p className="tone-red small wrap">{version.reason}</p>}
      </td>
      <td>
        <StageLabel stage={version.stage} />
      </td>
      <td>
        <MetricTags metrics={version.metrics ?? {}} most={3} />
      </td>
      <td className="right num nowrap">
        {version.state === "registering" ? `${bytes(version.done_bytes)} copied` : bytes(version.size_bytes)}
      </td>
      <td>
        {source.job ? (
          <Link to="/jobs/$job" params={{ job: source.job }} className="nowrap">
            {source.kind === "checkpoint" ? "checkpoint" : "output"}
          </Link>
        ) : (
          <span title={source.path}>upload</span>
        )}
      </td>
      <td className="dim">
        <Ago at={version.created_at} />
      </td>
    </tr>
  );
}

function ModelFacts({ model }: { model: Model }) {
  const labels = Object.entries(model.labels ?? {});
  return (
    <Card title="Model">
      <dl className="facts">
        <dt>Id</dt>
        <dd className="mono">{model.id}</dd>
        <dt>Project</dt>
        <dd>
          <Link to="/projects/$project" params={{ project: model.project }}>
            {model.project}
          </Link>
        </dd>
        <dt>Created by</dt>
        <dd>{model.user}</dd>
        <dt>Created</dt>
        <dd>
          <LocalTime at={model.created_at} />
        </dd>
        {model.latest != null && (
          <>
            <dt>Latest</dt>
            <dd>
              <Link
                to="/models/$project/$model/versions/$version"
                params={{ project: model.project, model: model.name, version: String(model.latest) }}
                className="num"
              >
                v{model.latest}
              </Link>
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
