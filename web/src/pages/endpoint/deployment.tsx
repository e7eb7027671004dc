import { Link } from "@tanstack/react-router";
import { CircleAlert, RefreshCw, Scaling, Trash2, Undo2 } from "lucide-react";
import { useState } from "react";
import { api, unwrap } from "~/api/client";
import type { DeploymentDetail, EndpointDetail } from "~/api/types";
import { Confirm, FormDialog } from "~/components/forms/dialogs";
import { Sentence } from "~/components/parts";
import { State } from "~/components/state";
import { TextInput } from "~/components/forms/textInput";
import { toast } from "~/components/shell/toasts";
import { withFullStop } from "~/lib/format";
import { rolloutParts, formatPart, UP_STATES } from "./rollout";
import { ModelRef } from "~/pages/model/parts";
import { useEndpointChanged } from "./actions";
import { DeployDialog } from "./deploy";
import { Replicas } from "./replicas";
import { RollBack } from "./rollBack";

interface DeploymentProps {
  endpoint: EndpointDetail;
  deployment: DeploymentDetail;
}

/** While a model is being deployed, a replica that is not ready yet is no warning. */
const tones: Record<string, string> = { failed: "bad", deploying: "" };

/** One deployed model. */
export function DeploymentCard({ endpoint, deployment }: DeploymentProps) {
  const { project } = endpoint;
  return (
    <section className="card" aria-label={`Deployed model ${deployment.name}`}>
      <header className="wrapping">
        <h2>{deployment.name}</h2>
        <State state={deployment.state} pill />
        <span className="grow" />
        <DeploymentActions endpoint={endpoint} deployment={deployment} />
      </header>
      <div className="body stack">
        {deployment.note && (
          <div className={`note ${tones[deployment.state] ?? "warn"}`} role="status">
            <CircleAlert size={16} aria-hidden="true" />
            <div>
              <Sentence text={withFullStop(deployment.note)} />
            </div>
          </div>
        )}
        <p className="row wrapping tight">
          <ModelRef project={project} name={deployment.model} />
          <span className="dim num">
            · revision {deployment.wanted} · {deployment.traffic} % of traffic
          </span>
        </p>
        <Rollout deployment={deployment} />
      </div>
      <Replicas replicas={deployment.replica_list ?? []} wanted={deployment.wanted} />
    </section>
  );
}

const FILLS = { ready: "green", starting: "cyan", queued: "amber", draining: "grey" } as const;

/** How many replicas are ready, and of which revision. */
function Rollout({ deployment }: { deployment: DeploymentDetail }) {
  const all = rolloutParts(deployment);
  const isUpdating = all.some((part) => part.revision !== deployment.wanted);
  const whole = Math.max(
    deployment.replicas,
    all.reduce((sum, part) => sum + UP_STATES.reduce((count, state) => count + part[state], 0), 0),
    1,
  );
  return (
    <div className="stack tight">
      <div className="row wrapping">
        <span className="num grow">
          <span className="strong">{deployment.ready}</span> of {deployment.replicas} ready
          {isUpdating && <span className="dim"> · updating to revision {deployment.wanted}</span>}
        </span>
        {deployment.stable != null && deployment.stable !== deployment.wanted && (
          <span className="dimmer small num">last stable revision: {deployment.stable}</span>
        )}
      </div>
      <div
        className="meter rollout"
        role="progressbar"
        aria-label={`Ready replicas of ${deployment.name}`}
        aria-valuemin={0}
        aria-valuemax={deployment.replicas}
        aria-valuenow={Math.min(deployment.ready, deployment.replicas)}
      >
        {all.map((part) => {
          const isNew = part.revision === deployment.wanted;
          return UP_STATES.map(
            (state) =>
              part[state] > 0 && (
                <span
                  key={`${part.revision}${state}`}
                  className={`fill-${state === "ready" && !isNew ? "blue" : FILLS[state]}`}
                  style={{ width: `${(100 * part[state]) / whole}%` }}
                />
              ),
          );
        })}
      </div>
      {(isUpdating || all.some((part) => part.starting + part.queued > 0)) && (
        <ul className="row wrapping small dim">
          {all.map((part) => (
            <li key={part.revision} className="num">
              revision {part.revision}: {formatPart(part)}
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}

type Open = "scale" | "rollback" | "update" | "undeploy" | null;

function DeploymentActions({ endpoint, deployment }: DeploymentProps) {
  const [open, setOpen] = useState<Open>(null);
  const changed = useEndpointChanged(endpoint.project, endpoint.name);
  const path = { project: endpoint.project, endpoint: endpoint.name, deployment: deployment.name };
  const close = () => setOpen(null);
  const revisions = deployment.revision_list ?? [];
  const current = revisions.find((revision) => revision.number === deployment.wanted);
  if (deployment.state === "undeploying" || deployment.state === "ended" || endpoint.deleting_at) return null;
  const scale = async (data: FormData) => {
    const body = { replicas: Number(data.get("replicas")) };
    const at = "/api/v1/projects/{project}/endpoints/{endpoint}/deployments/{deployment}/scale";
    await unwrap(api.POST(at, { params: { path }, body }));
    await changed();
    toast(`Scaling ${deployment.name} to ${body.replicas}.`);
  };
  const undeploy = async () => {
    await unwrap(
      api.DELETE("/api/v1/projects/{project}/endpoints/{endpoint}/deployments/{deployment}", { params: { path } }),
    );
    await changed();
  };
  return (
    <span className="row wrapping tight">
      <button type="button" className="button small" onClick={() => setOpen("update")}>
        <RefreshCw size={14} aria-hidden="true" /> Update
      </button>
      <button
        type="button"
        className="button small"
        onClick={() => setOpen("scale")}
        disabled={deployment.state === "failed"}
      >
        <Scaling size={14} aria-hidden="true" /> Scale
      </button>
      {revisions.length > 1 && (
        <button type="button" className="button small" onClick={() => setOpen("rollback")}>
          <Undo2 size={14} aria-hidden="true" /> Roll back
        </button>
      )}
      <button
        type="button"
        className="button small danger"
        aria-label={`Undeploy ${deployment.name}`}
        title="Undeploy"
        onClick={() => setOpen("undeploy")}
      >
        <Trash2 size={14} aria-hidden="true" />
      </button>
      <DeployDialog
        project={endpoint.project}
        endpoint={endpoint.name}
        deployment={current && { name: deployment.name, spec: current.spec, replicas: deployment.replicas }}
        isOpen={open === "update"}
        close={close}
      />
      <FormDialog
        title={`Scale ${deployment.name}`}
        isOpen={open === "scale"}
        close={close}
        verb="Scale"
        submit={scale}
      >
        {(errorOf) => (
          <TextInput
            name="replicas"
            label="Replicas"
            type="number"
            defaultValue={deployment.replicas}
            hint="With 0, requests are refused."
            error={errorOf("replicas")}
            isRequired
          />
        )}
      </FormDialog>
      <RollBack endpoint={endpoint} deployment={deployment} isOpen={open === "rollback"} close={close} />
      <Confirm
        title={open === "undeploy" ? `Undeploy ${deployment.name}?` : null}
        verb="Undeploy"
        act={undeploy}
        close={close}
      >
        Its replicas finish their requests and end. Its{" "}
        <Link
          to="/endpoints/$project/$endpoint/revisions"
          params={{ project: endpoint.project, endpoint: endpoint.name }}
          className="inline-link"
        >
          revisions
        </Link>{" "}
        are deleted with it.
      </Confirm>
    </span>
  );
}
