import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { Ban, CircleCheck, LogOut, Server, ShieldCheck } from "lucide-react";
import { useState } from "react";
import { api, unwrap } from "~/api/client";
import { holdersQuery, keys, meQuery, nodesQuery, waitingQuery } from "~/api/queries";
import type { Holder, Node } from "~/api/types";
import { FormDialog } from "~/components/forms/dialogs";
import { Skeleton, Card, Empty, Failure, Field, PageHead } from "~/components/parts";
import { toast } from "~/components/shell/toasts";
import { Ago } from "~/components/time";
import { bytes, pluralize, number } from "~/lib/format";
import { allocatable, gpuCount, isSchedulable, used } from "~/lib/capacity";
import { devicesOf, hueOf, Slot } from "./devices";
import { JobStatus } from "~/pages/jobs/table";
import { QuarantineNote } from "./quarantine";

export function ClusterPage() {
  const { data: nodes, error, isPending, refetch } = useQuery(nodesQuery);
  const { data: holders } = useQuery(holdersQuery);
  const [closing, setClosing] = useState<Closing | null>(null);
  const byNode = Map.groupBy(holders ?? [], (holder) => holder.node);
  return (
    <div className="page-body">
      <PageHead title="Cluster" />
      {error !== null && <Failure error={error} retry={() => void refetch()} />}
      {isPending ? (
        <Skeleton rows={6} height={60} />
      ) : nodes === undefined ? null : nodes.length === 0 ? (
        <Empty icon={Server} title="No nodes yet">
          <p>The scheduler registers the executor's nodes when it starts.</p>
        </Empty>
      ) : (
        <>
          <Totals nodes={nodes} />
          <ul className="nodes">
            {nodes.map((node) => (
              <NodeCard
                key={node.name}
                node={node}
                holders={byNode.get(node.name) ?? []}
                close={(how) => setClosing({ node, how })}
              />
            ))}
          </ul>
          <Waiting />
        </>
      )}
      <Close closing={closing} close={() => setClosing(null)} />
    </div>
  );
}

function Totals({ nodes }: { nodes: readonly Node[] }) {
  const sum = (of: (node: Node) => number) => nodes.reduce((total, node) => total + of(node), 0);
  const gpus = sum((node) => gpuCount(allocatable(node)));
  const rows: [string, number, number, (value: number) => string][] = [
    ["GPUs", sum((node) => gpuCount(used(node))), gpus, number],
    [
      "CPUs",
      sum((node) => used(node).cpu),
      sum((node) => allocatable(node).cpu),
      (value) => (value / 1000).toFixed(value < 10_000 ? 1 : 0),
    ],
    ["Memory", sum((node) => used(node).memory), sum((node) => allocatable(node).memory), bytes],
  ];
  return (
    <section className="card" aria-label="Totals">
      <div className="tiles">
        <div>
          <div className="dimmer">Nodes</div>
          <div className="value">
            {nodes.filter(isSchedulable).length} <span className="dimmer small">of {nodes.length} open</span>
          </div>
        </div>
        {rows
          .filter(([, , all]) => all > 0)
          .map(([name, taken, all, shown]) => (
            <div key={name}>
              <div className="dimmer">{name}</div>
              <div className="value">
                {shown(taken)} <span className="dimmer small">of {shown(all)} in use</span>
              </div>
              <Bar label={`${name} in use`} share={taken / all} />
            </div>
          ))}
      </div>
    </section>
  );
}

function Bar({ label, share }: { label: string; share: number }) {
  const percent = Math.round(Math.min(1, Math.max(0, share || 0)) * 100);
  return (
    <div
      className="meter"
      role="meter"
      aria-label={label}
      aria-valuenow={percent}
      aria-valuemin={0}
      aria-valuemax={100}
    >
      <div className={percent > 90 ? "full" : ""} style={{ width: `${percent}%` }} />
    </div>
  );
}

interface NodeCardProps {
  node: Node;
  holders: readonly Holder[];
  close: (how: Closing["how"]) => void;
}

function NodeCard({ node, holders, close }: NodeCardProps) {
  const { data: me } = useQuery(meQuery);
  const client = useQueryClient();
  const [all, taken] = [allocatable(node), used(node)];
  const devices = devicesOf(node, holders);
  const open = async (how: "uncordon" | "release") => {
    const request = { params: { path: { node: node.name } } };
    try {
      await unwrap(
        how === "release"
          ? api.POST("/api/v1/nodes/{node}/release", request)
          : api.POST("/api/v1/nodes/{node}/uncordon", request),
      );
      await client.invalidateQueries({ queryKey: keys.nodes });
    } catch (error) {
      toast(error instanceof Error ? error.message : String(error), "bad");
    }
  };
  const jobs = [...new Map(holders.map((holder) => [holder.job_id ?? holder.job, holder])).values()];
  return (
    <li className={`card node${isSchedulable(node) ? "" : " closed"}`}>
      <header>
        <span className={`dot ${node.is_ready ? (isSchedulable(node) ? "good" : "bad") : ""}`} aria-hidden="true" />
        <h2 className="cut mono" title={node.name}>
          {node.name}
        </h2>
        <span className="grow cut dimmer node-models">
          {Object.entries(all.gpus)
            .filter(([, models]) => models > 0)
            .map(([model, models]) => `${models} × ${model}`)
            .join(", ")}
        </span>
        {!node.is_ready && <span className="state tone-red">not ready</span>}
        {node.is_cordoned && (
          <span className="state tone-amber">
            {node.is_draining ? (node.replicas ? "draining" : "drained") : "cordoned"}
          </span>
        )}
        {node.quarantine && <span className="state tone-red">quarantined</span>}
        {!node.quarantine && node.suspicion && <span className="state tone-amber">suspected</span>}
        {me?.is_admin && (node.quarantine || node.suspicion) && (
          <button type="button" className="button quiet small" onClick={() => void open("release")}>
            <ShieldCheck size={13} aria-hidden="true" /> {node.quarantine ? "Release" : "Dismiss"}
          </button>
        )}
        {me?.is_admin &&
          (node.is_cordoned ? (
            <button type="button" className="button quiet small" onClick={() => void open("uncordon")}>
              <CircleCheck size={13} aria-hidden="true" /> Uncordon
            </button>
          ) : (
            <button type="button" className="button quiet small" onClick={() => close("cordon")}>
              <Ban size={13} aria-hidden="true" /> Cordon
            </button>
          ))}
        {me?.is_admin && !node.is_draining && (
          <button type="button" className="button quiet small" onClick={() => close("drain")}>
            <LogOut size={13} aria-hidden="true" /> Drain
          </button>
        )}
      </header>
      <div className="body stack">
        {!node.is_ready && node.condition && <p className="tone-red wrap">{node.condition}</p>}
        {node.is_cordoned && node.cordon_reason && <p className="dim wrap">{node.cordon_reason}</p>}
        <QuarantineNote node={node} />
        {devices.length > 0 && (
          <ul className="gpus" aria-label={`GPUs of ${node.name}`}>
            {devices.map((device, i) => (
              <li key={device.key}>
                <Slot name={`GPU ${i}`} device={device} />
              </li>
            ))}
          </ul>
        )}
        <div className="pair">
          <div>
            <div className="row dimmer">
              <span className="grow">CPU</span>
              <span className="num">
                {(taken.cpu / 1000).toFixed(1)} / {(all.cpu / 1000).toFixed(0)}
              </span>
            </div>
            <Bar label={`CPU of ${node.name} in use`} share={taken.cpu / all.cpu} />
          </div>
          <div>
            <div className="row dimmer">
              <span className="grow">Memory</span>
              <span className="num">
                {bytes(taken.memory)} / {bytes(all.memory)}
              </span>
            </div>
            <Bar label={`Memory of ${node.name} in use`} share={taken.memory / all.memory} />
          </div>
        </div>
        <div className="row wrapping node-jobs">
          {jobs.length === 0 && <span className="dimmer">No jobs.</span>}
          {jobs.slice(0, 6).map((holder) => (
            <HolderLink
              key={holder.job_id ?? "others"}
              holder={holder}
              count={holders.filter((each) => each.job_id === holder.job_id).length}
            />
          ))}
          {jobs.length > 6 && <span className="dimmer">and {jobs.length - 6} more</span>}
        </div>
      </div>
    </li>
  );
}

function HolderLink({ holder, count }: { holder: Holder; count: number }) {
  const swatch = <span className={`swatch hue-${hueOf(holder.job_id ?? "")}`} aria-hidden="true" />;
  if (!holder.job_id) {
    return <span className="tag">{swatch} other projects' jobs</span>;
  }
  return (
    <Link
      to="/jobs/$job"
      params={{ job: holder.job_id }}
      className="tag holder"
      title={`${holder.project}, ${pluralize(count, "replica")} here`}
    >
      {swatch} <span className="cut">{holder.job}</span> {count > 1 && <span className="dimmer num">×{count}</span>}
    </Link>
  );
}

function Waiting() {
  const { data } = useQuery(waitingQuery);
  const jobs = data?.items ?? [];
  return (
    <Card
      title="Waiting jobs"
      aside={
        <Link to="/jobs" search={{ state: "queued" }}>
          All
        </Link>
      }
      flush={jobs.length > 0}
    >
      {jobs.length === 0 ? (
        <p className="dim">No waiting jobs.</p>
      ) : (
        <ul className="plain-list">
          {jobs.map((job) => (
            <li key={job.id} className="row">
              <Link to="/jobs/$job" params={{ job: job.id }} className="cut waiting-name">
                {job.name}
              </Link>
              <span className="grow cut dim">
                <JobStatus job={job} />
              </span>
              <span className="dimmer">
                <Ago at={job.queued_at} />
              </span>
            </li>
          ))}
        </ul>
      )}
    </Card>
  );
}

interface Closing {
  node: Node;
  how: "cordon" | "drain";
}

function Close({ closing, close }: { closing: Closing | null; close: () => void }) {
  const client = useQueryClient();
  const isDrain = closing?.how === "drain";
  const verb = isDrain ? "Drain" : "Cordon";
  const submit = async (data: FormData) => {
    const request = {
      params: { path: { node: closing?.node.name ?? "" } },
      body: { reason: String(data.get("reason")) },
    };
    await unwrap(
      isDrain ? api.POST("/api/v1/nodes/{node}/drain", request) : api.POST("/api/v1/nodes/{node}/cordon", request),
    );
    await client.invalidateQueries({ queryKey: keys.nodes });
  };
  return (
    <FormDialog
      title={`${verb} ${closing?.node.name ?? ""}?`}
      isOpen={closing !== null}
      close={close}
      verb={verb}
      submit={submit}
    >
      <p className="dim">
        {isDrain
          ? "No new replicas are placed there. Running ones stop and resume elsewhere from their last checkpoint."
          : "No new replicas are placed there. Running ones continue."}
      </p>
      <Field label="Reason">
        {(props) => (
          <input {...props} className="input" name="reason" maxLength={1000} placeholder="shown to all users" />
        )}
      </Field>
    </FormDialog>
  );
}
