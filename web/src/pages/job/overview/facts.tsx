import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { Fragment } from "react";
import { modelsOfJobQuery } from "~/api/models";
import { jobUsageQuery } from "~/api/usage";
import type { JobDetail } from "~/api/types";
import { Card } from "~/components/parts";
import { LocalTime } from "~/components/time";
import { duration, number, pluralize } from "~/lib/format";

/** Resource requests of a replica in one line. */
function formatResources(resources: NonNullable<JobDetail["spec"]["roles"]>[string]["resources"]): string {
  const { cpu, memory, gpus, gpu_type, shm } = resources ?? {};
  const models = gpu_type && gpu_type.length > 0 ? ` ${gpu_type.join(" or ")}` : "";
  const parts = [
    gpus ? `${gpus} ×${models || " GPU"}` : "",
    cpu ? `${cpu} CPU` : "",
    memory ?? "",
    shm ? `${shm} of /dev/shm` : "",
  ].filter(Boolean);
  return parts.length > 0 ? parts.join(", ") : "no request: shares free capacity";
}

/** Models with a version from this job. */
function Registered({ job }: { job: string }) {
  const { data } = useQuery(modelsOfJobQuery(job));
  if (!data?.items.length) return null;
  return (
    <>
      <dt>Registered in</dt>
      <dd className="row wrapping">
        {data.items.map((model) => (
          <Link key={model.id} to="/models/$project/$model" params={{ project: model.project, model: model.name }}>
            {model.name}
          </Link>
        ))}
      </dd>
    </>
  );
}

/** GPU-hours or core-hours of the job until now, and their cost where there are prices. */
function Usage({ job }: { job: string }) {
  const { data } = useQuery(jobUsageQuery(job));
  if (!data || data.jobs === 0) return null;
  const amount = data.gpu_hours > 0 ? `${number(data.gpu_hours)} GPU-hours` : `${number(data.cpu_hours)} core-hours`;
  return (
    <>
      <dt>Usage</dt>
      <dd className="num">
        {amount}
        {Number(data.cost) > 0 && `, ${Number(data.cost).toFixed(2)} ${data.currency}`}
      </dd>
    </>
  );
}

/** Key facts of the job. */
export function Facts({ job }: { job: JobDetail }) {
  const { spec } = job;
  return (
    <Card title="Job">
      <dl className="facts">
        <dt>Id</dt>
        <dd className="mono">{job.id}</dd>
        {job.trial && (
          <>
            <dt>Trial</dt>
            <dd>
              <Link
                to="/studies/$study/trials"
                params={{ study: job.trial.study_id }}
                search={{ trial: job.trial.number }}
              >
                {job.trial.number}
              </Link>{" "}
              of{" "}
              <Link to="/studies/$study" params={{ study: job.trial.study_id }}>
                {job.trial.study}
              </Link>
            </dd>
          </>
        )}
        <dt>Submitted</dt>
        <dd>
          <LocalTime at={job.created_at} />
        </dd>
        {job.started_at && (
          <>
            <dt>Started</dt>
            <dd>
              <LocalTime at={job.started_at} />
              <span className="dimmer nowrap">
                {" "}
                after {duration((Date.parse(job.started_at) - Date.parse(job.created_at)) / 1000)}
              </span>
            </dd>
          </>
        )}
        {job.finished_at && (
          <>
            <dt>Finished</dt>
            <dd>
              <LocalTime at={job.finished_at} />
            </dd>
          </>
        )}
        <Usage job={job.id} />
        <dt>Command</dt>
        <dd className="mono command">{Array.isArray(spec.command) ? spec.command.join(" ") : (spec.command ?? "–")}</dd>
        {Object.entries(spec.roles ?? {}).map(([role, { resources }]) => (
          <Fragment key={role}>
            <dt>Each {role}</dt>
            <dd className="num">{formatResources(resources)}</dd>
          </Fragment>
        ))}
        {spec.image && (
          <>
            <dt>Image</dt>
            <dd className="mono">{spec.image}</dd>
          </>
        )}
        {spec.environment && (
          <>
            <dt>Environment</dt>
            <dd className="mono">{environmentWords(spec.environment)}</dd>
          </>
        )}
        {spec.input && (
          <>
            <dt>Input</dt>
            <dd className="mono">{spec.input}</dd>
          </>
        )}
        <dt>Output</dt>
        <dd className="mono">{job.output}</dd>
        {job.speeds && job.speeds.length > 0 && (
          <>
            <dt>Speed</dt>
            <dd className="num">
              {job.speeds.map((speed) => `${speed.replicas}: ${speed.steps_per_s.toPrecision(3)} steps/s`).join(", ")}
              {job.growth_note && <p className="dim">{job.growth_note}</p>}
            </dd>
          </>
        )}
        <dt>Priority</dt>
        <dd className="num">{job.priority}</dd>
        {spec.max_wait && (
          <>
            <dt>Max wait</dt>
            <dd className="num">{duration(spec.max_wait)}</dd>
          </>
        )}
        {spec.max_run_time && (
          <>
            <dt>Max run time</dt>
            <dd className="num">{duration(spec.max_run_time)}</dd>
          </>
        )}
        <dt>Attempts</dt>
        <dd className="num">
          {job.attempt_count ?? 0}
          {job.restart_count ? <span className="dimmer">, {pluralize(job.restart_count, "restart")}</span> : null}
        </dd>
        <Registered job={job.id} />
        {job.cloned_from && (
          <>
            <dt>Cloned from</dt>
            <dd>
              <Link to="/jobs/$job" params={{ job: job.cloned_from }} className="mono">
                {job.cloned_from}
              </Link>
            </dd>
          </>
        )}
        {Object.keys(job.labels ?? {}).length > 0 && (
          <>
            <dt>Labels</dt>
            <dd className="row wrapping">
              {Object.entries(job.labels ?? {}).map(([key, value]) => (
                <Link key={key} to="/jobs" search={{ label: value ? `${key}=${value}` : key }} className="tag">
                  {value ? `${key}=${value}` : key}
                </Link>
              ))}
            </dd>
          </>
        )}
      </dl>
    </Card>
  );
}

/** `venv /opt/venv, einops, numpy>=2`. */
function environmentWords({
  python,
  venv,
  conda,
  requirements,
}: NonNullable<JobDetail["spec"]["environment"]>): string {
  const named = Object.entries({ python, venv, conda }).flatMap(([name, value]) => (value ? [`${name} ${value}`] : []));
  return [...named, ...(requirements ?? [])].join(", ");
}
