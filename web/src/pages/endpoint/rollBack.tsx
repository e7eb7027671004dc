import { api, unwrap } from "~/api/client";
import type { DeploymentDetail, EndpointDetail } from "~/api/types";
import { FormDialog } from "~/components/forms/dialogs";
import { Field } from "~/components/parts";
import { TextInput } from "~/components/forms/textInput";
import { toast } from "~/components/shell/toasts";
import { modelOf } from "./deployRequest";
import { useEndpointChanged } from "./actions";

interface RollBackProps {
  endpoint: EndpointDetail;
  deployment: DeploymentDetail;
  /** Preselected revision; without it the platform chooses. */
  revision?: number;
  isOpen: boolean;
  close: () => void;
}

/** Rolls back to an earlier revision, replica by replica. */
export function RollBack({ endpoint, deployment, revision, isOpen, close }: RollBackProps) {
  const changed = useEndpointChanged(endpoint.project, endpoint.name);
  const others = (deployment.revision_list ?? []).filter((each) => each.number !== deployment.wanted);
  const submit = async (data: FormData) => {
    const chosen = String(data.get("revision") ?? "");
    const body = { reason: String(data.get("reason") ?? ""), ...(chosen ? { revision: Number(chosen) } : {}) };
    const path = { project: endpoint.project, endpoint: endpoint.name, deployment: deployment.name };
    const at = "/api/v1/projects/{project}/endpoints/{endpoint}/deployments/{deployment}/rollback";
    const after = await unwrap(api.POST(at, { params: { path }, body }));
    await changed();
    const target = (after.deployments ?? []).find((each) => each.name === deployment.name)?.wanted;
    toast(`${deployment.name} is rolled back to revision ${target ?? chosen}.`);
  };
  return (
    <FormDialog title={`Roll back ${deployment.name}`} isOpen={isOpen} close={close} verb="Roll back" submit={submit}>
      {(errorOf) => (
        <>
          <Field label="Revision" error={errorOf("revision")}>
            {(props) => (
              <select {...props} name="revision" className="input" defaultValue={revision ?? ""}>
                <option value="">last stable revision</option>
                {others.map((each) => (
                  <option key={each.number} value={each.number}>
                    revision {each.number}: {modelOf(each.spec)}
                    {each.stable_at ? "" : " (never stable)"}
                  </option>
                ))}
              </select>
            )}
          </Field>
          <TextInput name="reason" label="Reason" placeholder="optional" error={errorOf("reason")} />
        </>
      )}
    </FormDialog>
  );
}
