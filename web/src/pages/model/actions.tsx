import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { Pencil, RadioTower, ShieldCheck, ShieldOff, Trash2 } from "lucide-react";
import { type ReactNode, useState } from "react";
import { api, unwrap } from "~/api/client";
import { modelKeys } from "~/api/models";
import { meQuery, projectQuery } from "~/api/queries";
import type { Model, ModelVersion } from "~/api/types";
import { Confirm, FormDialog } from "~/components/forms/dialogs";
import { Field } from "~/components/parts";
import { toast } from "~/components/shell/toasts";
import { labelsOf, labelsText } from "./labels";
import { DeployDialog } from "~/pages/endpoint/deploy";

/** Invalidates the queries of a model and its versions. */
export function useChanged(project: string, model: string) {
  const client = useQueryClient();
  return () =>
    Promise.all([
      client.invalidateQueries({ queryKey: modelKeys.detail(project, model) }),
      client.invalidateQueries({ queryKey: modelKeys.all }),
    ]);
}

/** Actions on a model. `newest`: the version to deploy by default. */
export function ModelActions({ model, newest }: { model: Model; newest: ModelVersion | undefined }) {
  const navigate = useNavigate();
  const changed = useChanged(model.project, model.name);
  const [open, setOpen] = useState<"deploy" | "edit" | "delete" | null>(null);
  const path = { project: model.project, model: model.name };
  const close = () => setOpen(null);
  const protect = () =>
    unwrap(
      api.PATCH("/api/v1/projects/{project}/models/{model}", {
        params: { path },
        body: { is_protected: !model.is_protected },
      }),
    )
      .then(changed)
      .then(() => toast(model.is_protected ? `${model.name} is no longer protected.` : `${model.name} is protected.`))
      .catch((error: unknown) => toast(error instanceof Error ? error.message : String(error), "bad"));
  const remove = async (force: boolean) => {
    await unwrap(api.DELETE("/api/v1/projects/{project}/models/{model}", { params: { path, query: { force } } }));
    toast(`Deleted ${model.name}.`);
    await navigate({ to: "/models" });
    await changed();
  };
  return (
    <>
      {newest && (
        <button type="button" className="button primary" onClick={() => setOpen("deploy")}>
          <RadioTower size={15} aria-hidden="true" /> Deploy
        </button>
      )}
      <button type="button" className="button" onClick={() => setOpen("edit")}>
        <Pencil size={15} aria-hidden="true" /> Edit
      </button>
      <button type="button" className="button" onClick={() => void protect()}>
        {model.is_protected ? <ShieldOff size={15} aria-hidden="true" /> : <ShieldCheck size={15} aria-hidden="true" />}
        {model.is_protected ? "Unprotect" : "Protect"}
      </button>
      <button type="button" className="button danger" onClick={() => setOpen("delete")}>
        <Trash2 size={15} aria-hidden="true" /> Delete
      </button>
      <EditModel model={model} isOpen={open === "edit"} close={close} done={changed} />
      <ConfirmDelete
        title={open === "delete" ? `Delete ${model.name} with all its versions?` : null}
        project={model.project}
        act={remove}
        close={close}
      >
        Its files are removed, and its name becomes available. Jobs are kept. Refused while the model or a version is
        protected, has an alias or is deployed.
      </ConfirmDelete>
      {newest && (
        <DeployDialog
          project={model.project}
          model={`${model.name}@${newest.version}`}
          isOpen={open === "deploy"}
          close={close}
        />
      )}
    </>
  );
}

interface EditProps {
  model: Model;
  isOpen: boolean;
  close: () => void;
  done: () => Promise<unknown>;
}

function EditModel({ model, isOpen, close, done }: EditProps) {
  const submit = async (data: FormData) => {
    const body = {
      description: String(data.get("description") ?? ""),
      labels: labelsOf(String(data.get("labels") ?? "")),
    };
    const path = { project: model.project, model: model.name };
    await unwrap(api.PATCH("/api/v1/projects/{project}/models/{model}", { params: { path }, body }));
    await done();
  };
  return (
    <FormDialog title={`Edit ${model.name}`} isOpen={isOpen} close={close} verb="Save" submit={submit}>
      {(errorOf) => (
        <>
          <Field label="Description" error={errorOf("description")}>
            {(props) => (
              <textarea {...props} name="description" className="input" rows={4} defaultValue={model.description} />
            )}
          </Field>
          <Field label="Labels" hint="One per line: key=value." error={errorOf("labels")}>
            {(props) => (
              <textarea
                {...props}
                name="labels"
                className="input mono"
                rows={3}
                defaultValue={labelsText(model.labels ?? {})}
              />
            )}
          </Field>
        </>
      )}
    </FormDialog>
  );
}

interface ConfirmDeleteProps {
  title: string | null;
  project: string;
  act: (force: boolean) => Promise<unknown>;
  close: () => void;
  children: ReactNode;
}

/** Confirms a deletion; project admins may override protection, aliases and deployments. */
export function ConfirmDelete({ title, project, act, close, children }: ConfirmDeleteProps) {
  const { data: me } = useQuery(meQuery);
  const { data: details } = useQuery(projectQuery(project));
  const [isForced, setForced] = useState(false);
  const isAdmin = details?.my_role === "admin" || me?.is_admin === true;
  const closeDialog = () => {
    setForced(false);
    close();
  };
  return (
    <Confirm title={title} verb={isForced ? "Force delete" : "Delete"} act={() => act(isForced)} close={closeDialog}>
      <span className="stack">
        <span>{children}</span>
        {isAdmin && (
          <label className="row">
            <input
              type="checkbox"
              className="check"
              checked={isForced}
              onChange={(event) => setForced(event.target.checked)}
            />
            ignore protection, aliases and deployments
          </label>
        )}
      </span>
    </Confirm>
  );
}
