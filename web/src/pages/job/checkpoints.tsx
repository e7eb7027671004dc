import { useQuery, useQueryClient } from "@tanstack/react-query";
import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { Download, GitFork, Pin, PinOff, Play, Save, Trash2 } from "lucide-react";
import { useState } from "react";
import { api, got } from "~/api/client";
import { checkpointsQuery, isOver, jobQuery, keys } from "~/api/queries";
import type { Checkpoint } from "~/api/types";
import { Confirm } from "~/components/dialogs";
import { Bones, Empty, Failure } from "~/components/parts";
import { Ago } from "~/components/time";
import { toast } from "~/components/toasts";
import { bytes, number } from "~/lib/format";
import { Retention } from "./retention";

const route = getRouteApi("/shell/jobs/$job");

export function checkpointHref(job: string, path: string): string {
  return `/api/v1/jobs/${encodeURIComponent(job)}/checkpoints/content?path=${encodeURIComponent(path)}`;
}

export function Checkpoints() {
  const { job } = route.useParams();
  const { data, error, isPending, refetch } = useQuery(checkpointsQuery(job));
  const [chosen, setChosen] = useState<readonly string[]>([]);
  const items = data?.items ?? [];
  const toggle = (path: string) =>
    setChosen((before) => (before.includes(path) ? before.filter((each) => each !== path) : [...before.slice(-1), path]));
  // The older one is what the newer one is compared with.
  const [older, newer] = [...chosen].sort(
    (a, b) => items.findIndex((item) => item.path === b) - items.findIndex((item) => item.path === a),
  );
  return (
    <div className="page-body">
      <section className="card">
        <header>
          <h2 className="grow">Checkpoints, newest first</h2>
          {older !== undefined && newer !== undefined && (
            <Link
              to="/jobs/$job/checkpoint"
              params={{ job }}
              search={{ path: newer, other: older }}
              className="button small primary"
            >
              Compare the two
            </Link>
          )}
          {items.length > 1 && chosen.length < 2 && <span className="dimmer">tick two to compare them</span>}
        </header>
        {isPending ? (
          <div className="body">
            <Bones rows={5} />
          </div>
        ) : error !== null && data === undefined ? (
          <div className="body">
            <Failure error={error} retry={() => void refetch()} />
          </div>
        ) : items.length === 0 ? (
          <Empty icon={Save} title="No checkpoint yet">
            <p>
              What the job saves under <code>/data/output/checkpoints</code> shows up here as it lands, and a later attempt goes
              on from the newest complete one.
            </p>
          </Empty>
        ) : (
          <div className="table-box">
            <table className="table">
              <thead>
                <tr>
                  <th>
                    <span className="only-read">Choose</span>
                  </th>
                  <th>Checkpoint</th>
                  <th className="right">Step</th>
                  <th>Metrics at that step</th>
                  <th className="right">Size</th>
                  <th>Age</th>
                  <th>
                    <span className="only-read">Actions</span>
                  </th>
                </tr>
              </thead>
              <tbody>
                {items.map((item) => (
                  <Row
                    key={item.path}
                    job={job}
                    item={item}
                    isChosen={chosen.includes(item.path)}
                    toggle={() => toggle(item.path)}
                  />
                ))}
              </tbody>
            </table>
          </div>
        )}
      </section>
      <Retention job={job} />
    </div>
  );
}

function Row({ job, item, isChosen, toggle }: { job: string; item: Checkpoint; isChosen: boolean; toggle: () => void }) {
  return (
    <tr>
      <td>
        <input
          type="checkbox"
          className="check"
          aria-label={`Choose ${item.path}`}
          checked={isChosen}
          onChange={toggle}
          disabled={item.is_complete === false}
        />
      </td>
      <td className="wrap">
        {item.is_complete === false ? (
          <span className="mono dim">{item.path}</span>
        ) : (
          <Link to="/jobs/$job/checkpoint" params={{ job }} search={{ path: item.path }} className="mono strong">
            {item.path}
          </Link>
        )}{" "}
        {item.format && <span className="tag">{item.format}</span>}{" "}
        {item.is_kept && <span className="tag tone-violet">kept</span>}{" "}
        {item.is_in_use && <span className="tag tone-blue">in use</span>}
        {item.problem && <p className="tone-amber">{item.problem}</p>}
      </td>
      <td className="right num">{number(item.step)}</td>
      <td>
        <span className="row wrapping">
          {Object.entries(item.metrics ?? {})
            .slice(0, 4)
            .map(([name, value]) => (
              <span key={name} className="tag num">
                {name} {number(value)}
              </span>
            ))}
        </span>
      </td>
      <td className="right num nowrap">{bytes(item.size_bytes)}</td>
      <td className="dim">
        <Ago at={item.created_at} />
      </td>
      <td className="right">
        <CheckpointActions job={job} item={item} />
      </td>
    </tr>
  );
}

export function CheckpointActions({ job, item }: { job: string; item: Checkpoint }) {
  const { data: detail } = useQuery(jobQuery(job));
  const client = useQueryClient();
  const navigate = useNavigate();
  const [isGoing, setGoing] = useState(false);
  const { path } = item;
  const name = path.split("/").at(-1) ?? path;
  const changed = () => client.invalidateQueries({ queryKey: keys.job(job) });
  const run = (act: () => Promise<string>) => () => {
    act()
      .then((done) => toast(done))
      .catch((error: unknown) => toast(error instanceof Error ? error.message : String(error), "bad"));
  };
  const fork = run(async () => {
    const params = { path: { job }, header: { "Idempotency-Key": crypto.randomUUID() } };
    const made = await got(api.POST("/api/v1/jobs/{job}/clone", { params, body: { checkpoint: path } }));
    await client.invalidateQueries({ queryKey: keys.jobs });
    await navigate({ to: "/jobs/$job", params: { job: made.id } });
    return `Submitted ${made.name}, which begins at ${name}.`;
  });
  const resume = run(async () => {
    await got(api.POST("/api/v1/jobs/{job}/resume", { params: { path: { job } }, body: { checkpoint: path } }));
    await changed();
    return `The job goes on from ${name}.`;
  });
  const keep = run(async () => {
    const params = { path: { job }, query: { path } };
    await got(
      item.is_kept
        ? api.DELETE("/api/v1/jobs/{job}/checkpoints/kept", { params })
        : api.PUT("/api/v1/jobs/{job}/checkpoints/kept", { params }),
    );
    await changed();
    return item.is_kept ? `${name} is kept no longer than others.` : `${name} is kept for ever.`;
  });
  const remove = async () => {
    await got(api.DELETE("/api/v1/jobs/{job}/checkpoints", { params: { path: { job }, query: { path } } }));
    await changed();
  };
  return (
    <span className="row end tight">
      {detail && !isOver(detail.state) && item.is_complete !== false && (
        <button
          type="button"
          className="button quiet icon small"
          title="Let this job go on from here"
          aria-label={`Resume from ${path}`}
          onClick={resume}
        >
          <Play size={14} aria-hidden="true" />
        </button>
      )}
      {item.is_complete !== false && (
        <button
          type="button"
          className="button quiet icon small"
          title="New job from here"
          aria-label={`New job from ${path}`}
          onClick={fork}
        >
          <GitFork size={14} aria-hidden="true" />
        </button>
      )}
      <a
        className="button quiet icon small"
        title="Download"
        href={checkpointHref(job, path)}
        download
        aria-label={`Download ${path}`}
      >
        <Download size={14} aria-hidden="true" />
      </a>
      <button
        type="button"
        className="button quiet icon small"
        title={item.is_kept ? "Keep it no longer" : "Keep it for ever"}
        aria-label={item.is_kept ? `Keep ${path} no longer` : `Keep ${path} for ever`}
        onClick={keep}
      >
        {item.is_kept ? <PinOff size={14} aria-hidden="true" /> : <Pin size={14} aria-hidden="true" />}
      </button>
      <button
        type="button"
        className="button quiet icon small danger"
        title="Delete"
        aria-label={`Delete ${path}`}
        onClick={() => setGoing(true)}
      >
        <Trash2 size={14} aria-hidden="true" />
      </button>
      <Confirm title={isGoing ? `Delete ${name}?` : null} verb="Delete" act={remove} close={() => setGoing(false)}>
        Its files are removed. Refused while it is kept or a job goes on from it.
      </Confirm>
    </span>
  );
}
