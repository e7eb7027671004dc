import { useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { Percent, RadioTower, Trash2 } from "lucide-react";
import { useState } from "react";
import { api, unwrap } from "~/api/client";
import { endpointKeys } from "~/api/endpoints";
import { modelKeys } from "~/api/models";
import type { EndpointDetail } from "~/api/types";
import { Confirm, FormDialog } from "~/components/forms/dialogs";
import { TextInput } from "~/components/forms/textInput";
import { toast } from "~/components/shell/toasts";
import { DeployDialog } from "./deploy";

/** Invalidates an endpoint's queries, and those of the models that it serves. */
export function useEndpointChanged(project: string, endpoint: string) {
  const client = useQueryClient();
  return () =>
    Promise.all([
      client.invalidateQueries({ queryKey: endpointKeys.detail(project, endpoint) }),
      client.invalidateQueries({ queryKey: endpointKeys.all }),
      client.invalidateQueries({ queryKey: modelKeys.all }),
    ]);
}

export function EndpointActions({ endpoint }: { endpoint: EndpointDetail }) {
  const [open, setOpen] = useState<"deploy" | "traffic" | "delete" | null>(null);
  const navigate = useNavigate();
  const changed = useEndpointChanged(endpoint.project, endpoint.name);
  const path = { project: endpoint.project, endpoint: endpoint.name };
  const close = () => setOpen(null);
  const remove = async () => {
    await unwrap(api.DELETE("/api/v1/projects/{project}/endpoints/{endpoint}", { params: { path } }));
    toast(`${endpoint.name} is being deleted.`);
    await navigate({ to: "/endpoints" });
    await changed();
  };
  if (endpoint.deleting_at) return null;
  return (
    <>
      <button type="button" className="button primary" onClick={() => setOpen("deploy")}>
        <RadioTower size={15} aria-hidden="true" /> Deploy a model
      </button>
      {(endpoint.deployments ?? []).length > 1 && (
        <button type="button" className="button" onClick={() => setOpen("traffic")}>
          <Percent size={15} aria-hidden="true" /> Split traffic
        </button>
      )}
      <button type="button" className="button danger" onClick={() => setOpen("delete")}>
        <Trash2 size={15} aria-hidden="true" /> Delete
      </button>
      <DeployDialog project={endpoint.project} endpoint={endpoint.name} isOpen={open === "deploy"} close={close} />
      <Traffic endpoint={endpoint} isOpen={open === "traffic"} close={close} done={changed} />
      <Confirm title={open === "delete" ? `Delete ${endpoint.name}?` : null} verb="Delete" act={remove} close={close}>
        Requests are refused immediately, and it disappears once its replicas have ended. Model versions are kept.
      </Confirm>
    </>
  );
}

interface TrafficProps {
  endpoint: EndpointDetail;
  isOpen: boolean;
  close: () => void;
  done: () => Promise<unknown>;
}

function Traffic({ endpoint, isOpen, close, done }: TrafficProps) {
  const deployments = (endpoint.deployments ?? []).filter((deployment) => deployment.state !== "undeploying");
  const submit = async (data: FormData) => {
    const traffic = Object.fromEntries(
      deployments.map((deployment) => [deployment.name, Number(data.get(deployment.name) || 0)]),
    );
    const path = { project: endpoint.project, endpoint: endpoint.name };
    await unwrap(
      api.PUT("/api/v1/projects/{project}/endpoints/{endpoint}/traffic", { params: { path }, body: { traffic } }),
    );
    await done();
    toast("Traffic updated.");
  };
  return (
    <FormDialog title="Split traffic" isOpen={isOpen} close={close} verb="Set" submit={submit}>
      {(errorOf) => (
        <>
          <p className="dim">In percent, 100 in total. A deployed model with 0 is only reachable by its name.</p>
          {deployments.map((deployment) => (
            <TextInput
              key={deployment.id}
              name={deployment.name}
              label={`${deployment.name}: ${deployment.model}`}
              type="number"
              defaultValue={deployment.traffic}
              error={errorOf(`traffic.${deployment.name}`)}
            />
          ))}
        </>
      )}
    </FormDialog>
  );
}
