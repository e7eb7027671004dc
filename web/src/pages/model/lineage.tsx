import { Link } from "@tanstack/react-router";
import type { ModelVersionDetail } from "~/api/types";
import { Card, CopyButton } from "~/components/parts";
import { number } from "~/lib/format";
import { jobOutputAt } from "~/lib/locations";

const SHOWN = 60; // parameters

/** The lineage of a version, with links. */
export function Lineage({ version }: { version: ModelVersionDetail }) {
  const { lineage, source } = version;
  const job = source.job ?? "";
  const parameters = Object.entries(lineage?.parameters ?? {});
  const trial =
    lineage?.study_id && lineage.trial != null
      ? { study: lineage.study_id, name: lineage.study ?? lineage.study_id, number: lineage.trial }
      : null;
  return (
    <Card title="Lineage">
      <dl className="facts">
        <dt>{job ? "Job" : "Uploaded"}</dt>
        <dd className="row wrapping tight">
          {job ? (
            <Link to="/jobs/$job" params={{ job }}>
              {lineage?.job_name || job}
            </Link>
          ) : (
            <span className="mono wrap">from {source.path}</span>
          )}
          {lineage?.attempt != null && <span className="dimmer">attempt {lineage.attempt}</span>}
          {lineage?.user && <span className="dimmer">by {lineage.user}</span>}
        </dd>
        {source.kind === "checkpoint" && (
          <>
            <dt>Checkpoint</dt>
            <dd className="row wrapping tight">
              <Link
                to="/jobs/$job/checkpoint"
                params={{ job }}
                search={{ path: source.path ?? "" }}
                className="mono wrap"
              >
                {source.path}
              </Link>
              {lineage?.step != null && <span className="dimmer num"> at step {number(lineage.step)}</span>}
            </dd>
          </>
        )}
        {source.kind === "output" && (
          <>
            <dt>Output</dt>
            <dd>
              <OutputLink job={job} path={source.path ?? ""} isSingleFile={version.file_count === 1} />
            </dd>
          </>
        )}
        {trial && (
          <>
            <dt>Trial</dt>
            <dd className="row wrapping tight">
              <Link to="/studies/$study/trials" params={{ study: trial.study }} search={{ trial: trial.number }}>
                {trial.number}
              </Link>{" "}
              of{" "}
              <Link to="/studies/$study" params={{ study: trial.study }}>
                {trial.name}
              </Link>
            </dd>
          </>
        )}
        {lineage?.cloned_from && (
          <>
            <dt>Cloned from</dt>
            <dd>
              <Link to="/jobs/$job" params={{ job: lineage.cloned_from }} className="mono">
                {lineage.cloned_from}
              </Link>
            </dd>
          </>
        )}
        <dt>Code</dt>
        <dd>
          {lineage?.code ? (
            <span className="row wrapping">
              {job ? (
                <Link to="/jobs/$job/spec" params={{ job }} className="mono cut" title={lineage.code}>
                  {shortDigest(lineage.code)}
                </Link>
              ) : (
                <span className="mono cut" title={lineage.code}>
                  {shortDigest(lineage.code)}
                </span>
              )}
              <CopyButton text={lineage.code} />
            </span>
          ) : (
            <span className="dimmer">
              none
              <SeeSpec job={job} />
            </span>
          )}
        </dd>
        {Object.entries(lineage?.commands ?? {}).map(([role, command]) => (
          <Pair key={role} name={`Command of ${role}`}>
            <span className="mono command wrap">{command}</span>
          </Pair>
        ))}
        {Object.entries(lineage?.images ?? {}).map(([role, image]) => (
          <Pair key={role} name={`Image of ${role}`}>
            <span className="mono wrap">{image}</span>
          </Pair>
        ))}
        <dt>Data</dt>
        <dd>
          {(lineage?.data ?? []).length === 0 ? (
            <span className="dimmer">none</span>
          ) : (
            (lineage?.data ?? []).map((location) => <DataLink key={location} location={location} />)
          )}
        </dd>
        {job && (
          <>
            <dt>Metrics</dt>
            <dd>
              <Link to="/jobs/$job/metrics" params={{ job }}>
                metrics of the job
              </Link>
            </dd>
          </>
        )}
        <dt>Parameters</dt>
        <dd>
          {parameters.length === 0 ? (
            <span className="dimmer">
              none reported
              <SeeSpec job={job} />
            </span>
          ) : trial ? (
            <Link to="/studies/$study/trials" params={{ study: trial.study }} search={{ trial: trial.number }}>
              {parameters.length} of trial {trial.number}
            </Link>
          ) : (
            <span className="dimmer">{parameters.length}</span>
          )}
        </dd>
      </dl>
      {parameters.length > 0 && (
        <div className="row wrapping parameter-tags">
          {parameters.slice(0, SHOWN).map(([name, value]) => (
            <span key={name} className="tag num" title={`${name} = ${String(value)}`}>
              <span className="cut">
                {name} = {typeof value === "object" ? JSON.stringify(value) : number(value)}
              </span>
            </span>
          ))}
          {parameters.length > SHOWN && <span className="dimmer small">and {parameters.length - SHOWN} more</span>}
        </div>
      )}
    </Card>
  );
}

function Pair({ name, children }: { name: string; children: React.ReactNode }) {
  return (
    <>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </>
  );
}

const shortDigest = (digest: string): string => digest.replace(/^sha256:/, "").slice(0, 16);

/** A link to the job's spec; nothing for an upload. */
function SeeSpec({ job }: { job: string }) {
  if (!job) return null;
  return (
    <>
      ; see the{" "}
      <Link to="/jobs/$job/spec" params={{ job }} className="inline-link">
        job's spec
      </Link>
    </>
  );
}

/** Links to the folder, or to the folder of a file. */
function OutputLink({ job, path, isSingleFile }: { job: string; path: string; isSingleFile: boolean }) {
  const isFile = isSingleFile && /\.[A-Za-z0-9]+$/.test(path);
  const folder = isFile ? path.split("/").slice(0, -1).join("/") : path;
  return (
    <Link
      to="/jobs/$job/files"
      params={{ job }}
      search={folder && folder !== "." ? { path: folder } : {}}
      className="mono wrap"
    >
      {path && path !== "." ? path : "whole output"}
    </Link>
  );
}

function DataLink({ location }: { location: string }) {
  const found = jobOutputAt(location);
  if (found === null)
    return (
      <div>
        <Link to="/volumes" className="mono wrap">
          {location}
        </Link>
      </div>
    );
  return (
    <div>
      <Link
        to="/jobs/$job/files"
        params={{ job: found.job }}
        search={found.path ? { path: found.path } : {}}
        className="mono wrap"
      >
        {location}
      </Link>
    </div>
  );
}
