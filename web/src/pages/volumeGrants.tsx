import { useQuery } from "@tanstack/react-query";
import { Plus, X } from "lucide-react";
import { useState } from "react";
import { api, unwrap } from "~/api/client";
import { projectsQuery } from "~/api/queries";
import type { Volume, VolumeGrant } from "~/api/types";
import { Confirm, FormDialog } from "~/components/forms/dialogs";
import { Field } from "~/components/parts";

/** What the caller may do on a volume: "read-write", or each granted folder with its right. */
export function accessText(volume: Volume): string {
  const words = { read: "read-only", write: "read-write" };
  return (volume.parts ?? [])
    .map((part) => (part.prefix ? `${part.prefix}: ${words[part.access]}` : words[part.access]))
    .join(", ");
}

function grantText(grant: VolumeGrant): string {
  return [grant.grantee, grant.access, grant.prefix].filter(Boolean).join(" ");
}

/** A volume's grants, which platform admins add and revoke here. */
export function VolumeGrants({ volume, changed }: { volume: Volume; changed: () => Promise<unknown> }) {
  const { data: projects } = useQuery(projectsQuery);
  const [isOpen, setOpen] = useState(false);
  const [gone, setGone] = useState<VolumeGrant | null>(null);
  const place = (grantee: string) => ({ volume: volume.name, grantee });
  const grant = async (data: FormData) => {
    const words = (name: string) => String(data.get(name) ?? "").trim();
    await unwrap(
      api.PUT("/api/v1/volumes/{volume}/grants/{grantee}", {
        params: { path: place(words("grantee")) },
        body: { access: words("access") as VolumeGrant["access"], prefix: words("prefix") },
      }),
    );
    await changed();
  };
  const revoke = async () => {
    if (gone === null) return;
    await unwrap(
      api.DELETE("/api/v1/volumes/{volume}/grants/{grantee}", {
        params: { path: place(gone.grantee), query: { prefix: gone.prefix ?? "" } },
      }),
    );
    await changed();
  };
  return (
    <div className="row wrap">
      {(volume.grants ?? []).map((each) => (
        <span className="tag" key={`${each.grantee} ${each.prefix}`}>
          {grantText(each)}
          <button
            type="button"
            className="button quiet small"
            onClick={() => setGone(each)}
            aria-label={`Revoke ${grantText(each)} on ${volume.name}`}
          >
            <X size={12} aria-hidden="true" />
          </button>
        </span>
      ))}
      <button
        type="button"
        className="button quiet small"
        onClick={() => setOpen(true)}
        aria-label={`Grant access to ${volume.name}`}
      >
        <Plus size={14} aria-hidden="true" />
      </button>
      <FormDialog
        title={`Grant access to ${volume.name}`}
        isOpen={isOpen}
        close={() => setOpen(false)}
        verb="Grant"
        submit={grant}
      >
        <Field label="Project" hint="everyone: members of all projects.">
          {(props) => (
            <select {...props} className="input" name="grantee">
              {["everyone", ...(projects ?? []).map((project) => project.name)].map((name) => (
                <option key={name}>{name}</option>
              ))}
            </select>
          )}
        </Field>
        <Field label="Access" hint="Viewers of a project only read.">
          {(props) => (
            <select {...props} className="input" name="access">
              <option>read</option>
              <option>write</option>
            </select>
          )}
        </Field>
        <Field label="Folder" hint="Blank: the whole volume.">
          {(props) => <input {...props} className="input mono" name="prefix" autoComplete="off" />}
        </Field>
      </FormDialog>
      <Confirm
        title={gone === null ? null : `Revoke ${grantText(gone)} on ${volume.name}?`}
        verb="Revoke"
        act={revoke}
        close={() => setGone(null)}
      >
        Submitted jobs keep their mounts.
      </Confirm>
    </div>
  );
}
