import { useNavigate } from "@tanstack/react-router";
import { ArrowUpRight, Download, Pencil, RadioTower, Rows3, ShieldCheck, ShieldOff, Trash2 } from "lucide-react";
import { useState } from "react";
import { api, unwrap } from "~/api/client";
import { archiveHref, STAGES } from "~/api/models";
import type { ModelVersionDetail, Stage } from "~/api/types";
import { FormDialog } from "~/components/forms/dialogs";
import { Field } from "~/components/parts";
import { TextInput } from "~/components/forms/textInput";
import { toast } from "~/components/shell/toasts";
import { labelsOf, labelsText } from "./labels";
import { DeployDialog } from "~/pages/endpoint/deploy";
import { ConfirmDelete, useChanged } from "./actions";

type Open = "deploy" | "stage" | "edit" | "delete" | null;

/** Actions on a version. */
export function VersionActions({ version }: { version: ModelVersionDetail }) {
  const { project, model, version: number } = version;
  const navigate = useNavigate();
  const changed = useChanged(project, model);
  const [open, setOpen] = useState<Open>(null);
  const close = () => setOpen(null);
  const params = { path: { project, model, version: String(number) } };
  const name = `${model} v${number}`;
  const isReady = version.state === "ready";
  const protect = () =>
    unwrap(
      api.PATCH("/api/v1/projects/{project}/models/{model}/versions/{version}", {
        params,
        body: { is_protected: !version.is_protected },
      }),
    )
      .then(changed)
      .then(() => toast(version.is_protected ? `${name} is no longer protected.` : `${name} is protected.`))
      .catch((error: unknown) => toast(error instanceof Error ? error.message : String(error), "bad"));
  const setStage = async (data: FormData) => {
    const body = { stage: String(data.get("stage")) as Stage, reason: String(data.get("reason") ?? "") };
    await unwrap(api.POST("/api/v1/projects/{project}/models/{model}/versions/{version}/stage", { params, body }));
    await changed();
    toast(`${name} is in stage ${body.stage}.`);
  };
  const edit = async (data: FormData) => {
    const body = {
      description: String(data.get("description") ?? ""),
      labels: labelsOf(String(data.get("labels") ?? "")),
    };
    await unwrap(api.PATCH("/api/v1/projects/{project}/models/{model}/versions/{version}", { params, body }));
    await changed();
  };
  const remove = async (force: boolean) => {
    const query = { force };
    await unwrap(
      api.DELETE("/api/v1/projects/{project}/models/{model}/versions/{version}", { params: { ...params, query } }),
    );
    toast(`Deleted ${name}.`);
    await navigate({ to: "/models/$project/$model", params: { project, model } });
    await changed();
  };
  return (
    <span className="row wrapping tight">
      {isReady && (
        <>
          <button type="button" className="button small primary" onClick={() => setOpen("deploy")}>
            <RadioTower size={14} aria-hidden="true" /> Deploy this version
          </button>
          <button
            type="button"
            className="button small"
            onClick={() =>
              void navigate({ to: "/batch-predictions", search: { project, model: `${model}@${number}` } })
            }
          >
            <Rows3 size={14} aria-hidden="true" /> Batch prediction
          </button>
          <a className="button small" href={archiveHref(project, model, number)} download={`${model}-${number}.tar`}>
            <Download size={14} aria-hidden="true" /> Download
          </a>
        </>
      )}
      <button type="button" className="button small" onClick={() => setOpen("stage")}>
        <ArrowUpRight size={14} aria-hidden="true" /> Set stage
      </button>
      <button
        type="button"
        className="button small"
        onClick={() => setOpen("edit")}
        aria-label={`Edit version ${number}`}
      >
        <Pencil size={14} aria-hidden="true" />
      </button>
      <button
        type="button"
        className="button small"
        onClick={() => void protect()}
        aria-label={version.is_protected ? `Unprotect version ${number}` : `Protect version ${number}`}
        title={version.is_protected ? "Unprotect" : "Protect"}
      >
        {version.is_protected ? (
          <ShieldOff size={14} aria-hidden="true" />
        ) : (
          <ShieldCheck size={14} aria-hidden="true" />
        )}
      </button>
      <button
        type="button"
        className="button small danger"
        onClick={() => setOpen("delete")}
        aria-label={`Delete version ${number}`}
        title="Delete"
      >
        <Trash2 size={14} aria-hidden="true" />
      </button>
      <FormDialog title={`Stage of ${name}`} isOpen={open === "stage"} close={close} verb="Set" submit={setStage}>
        {(errorOf) => (
          <>
            <Field label="Stage" error={errorOf("stage")}>
              {(props) => (
                <select {...props} name="stage" className="input" defaultValue={version.stage ?? "none"}>
                  {STAGES.map((stage) => (
                    <option key={stage}>{stage}</option>
                  ))}
                </select>
              )}
            </Field>
            <TextInput name="reason" label="Reason" placeholder="optional" error={errorOf("reason")} />
          </>
        )}
      </FormDialog>
      <FormDialog title={`Edit ${name}`} isOpen={open === "edit"} close={close} verb="Save" submit={edit}>
        {(errorOf) => (
          <>
            <p className="dim">The files are immutable.</p>
            <Field label="Description" error={errorOf("description")}>
              {(props) => (
                <textarea {...props} name="description" className="input" rows={4} defaultValue={version.description} />
              )}
            </Field>
            <Field label="Labels" hint="One per line: key=value." error={errorOf("labels")}>
              {(props) => (
                <textarea
                  {...props}
                  name="labels"
                  className="input mono"
                  rows={3}
                  defaultValue={labelsText(version.labels ?? {})}
                />
              )}
            </Field>
          </>
        )}
      </FormDialog>
      <ConfirmDelete title={open === "delete" ? `Delete ${name}?` : null} project={project} act={remove} close={close}>
        Its files are removed; its job is kept. Refused while it is protected, has an alias or is deployed.
      </ConfirmDelete>
      {isReady && (
        <DeployDialog project={project} model={`${model}@${number}`} isOpen={open === "deploy"} close={close} />
      )}
    </span>
  );
}
