import { useQuery, useQueryClient } from "@tanstack/react-query";
import { HardDrive, Plus, Trash2 } from "lucide-react";
import { useState } from "react";
import { api, unwrap } from "~/api/client";
import { keys, meQuery, volumesQuery } from "~/api/queries";
import type { Volume } from "~/api/types";
import { DataTable } from "~/components/dataTable";
import { Confirm, FormDialog } from "~/components/forms/dialogs";
import { Field, PageHead } from "~/components/parts";
import { Ago } from "~/components/time";
import { accessText, VolumeGrants } from "~/pages/volumeGrants";

const KINDS = ["local", "nfs", "pvc", "csi"] as const;
type Kind = (typeof KINDS)[number];

/** Fields of `config` by kind; those with a star are required. */
const CONFIG: Record<Kind, readonly string[]> = {
  local: ["path"],
  nfs: ["server*", "path*", "options"],
  pvc: ["claim*", "namespace"],
  csi: ["driver*", "secret"],
};

/** `mount_options*` as a label: Mount options. */
function fieldLabel(field: string): string {
  const words = field.replace("*", "").replaceAll("_", " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

export function VolumesPage() {
  const query = useQuery(volumesQuery);
  const { data: me } = useQuery(meQuery);
  const [isOpen, setOpen] = useState(false);
  const [kind, setKind] = useState<Kind>("local");
  const [gone, setGone] = useState<string | null>(null);
  const client = useQueryClient();
  const changed = () => client.invalidateQueries({ queryKey: keys.volumes });
  const create = async (data: FormData) => {
    const words = (name: string) => String(data.get(name) ?? "").trim();
    const config = Object.fromEntries(
      CONFIG[kind]
        .map((field) => field.replace("*", ""))
        .flatMap((field) => (words(field) ? [[field, words(field)]] : [])),
    );
    const body = {
      name: words("name"),
      kind,
      is_read_only: data.get("is_read_only") === "on",
      config,
      ...(words("root") ? { root: words("root") } : {}),
    };
    await unwrap(api.POST("/api/v1/volumes", { body: body as never }));
    await changed();
  };
  const remove = async () => {
    await unwrap(api.DELETE("/api/v1/volumes/{volume}", { params: { path: { volume: gone ?? "" } } }));
    await changed();
  };
  return (
    <div className="page-body">
      <PageHead title="Volumes" about="Storage that jobs read from and write to, as volume/path.">
        {me?.is_admin && (
          <button type="button" className="button primary" onClick={() => setOpen(true)}>
            <Plus size={15} aria-hidden="true" /> Register a volume
          </button>
        )}
      </PageHead>
      <DataTable
        label="Volumes"
        query={query}
        rowKey={(volume) => volume.name}
        empty={{ icon: HardDrive, title: "No volumes", description: "Platform admins register volumes." }}
        columns={[
          { head: "Name", cell: (volume) => <span className="mono strong">{volume.name}</span> },
          { head: "Kind", cell: (volume) => volume.kind },
          { head: "Access", cell: (volume) => <span className="dim">{accessText(volume)}</span> },
          ...(me?.is_admin
            ? [{ head: "Grants", cell: (volume: Volume) => <VolumeGrants volume={volume} changed={changed} /> }]
            : []),
          { head: "Root", cell: (volume) => <span className="mono dim wrap">{volume.root ?? ""}</span> },
          { head: "Registered", cell: (volume) => <Ago at={volume.created_at} /> },
          {
            head: <span className="only-read">Actions</span>,
            isRight: true,
            cell: (volume) =>
              me?.is_admin && (
                <button
                  type="button"
                  className="button quiet small danger"
                  onClick={() => setGone(volume.name)}
                  aria-label={`Remove ${volume.name}`}
                >
                  <Trash2 size={14} aria-hidden="true" />
                </button>
              ),
          },
        ]}
      />
      <FormDialog
        title="Register a volume"
        isOpen={isOpen}
        close={() => setOpen(false)}
        verb="Register"
        submit={create}
      >
        <Field label="Name">
          {(props) => <input {...props} className="input" name="name" required maxLength={63} autoComplete="off" />}
        </Field>
        <Field label="Kind">
          {(props) => (
            <select {...props} className="input" value={kind} onChange={(event) => setKind(event.target.value as Kind)}>
              {KINDS.map((each) => (
                <option key={each}>{each}</option>
              ))}
            </select>
          )}
        </Field>
        <Field label="Root" hint="Mount path on the control plane, needed to show files and logs.">
          {(props) => (
            <input
              {...props}
              className="input mono"
              name="root"
              required={kind === "local"}
              placeholder="/srv/data"
              autoComplete="off"
            />
          )}
        </Field>
        {CONFIG[kind].map((field) => (
          <Field key={`${kind}${field}`} label={fieldLabel(field)}>
            {(props) => (
              <input
                {...props}
                className="input mono"
                name={field.replace("*", "")}
                required={field.endsWith("*")}
                autoComplete="off"
              />
            )}
          </Field>
        ))}
        <label className="row">
          <input type="checkbox" className="check" name="is_read_only" /> Read-only
        </label>
      </FormDialog>
      <Confirm
        title={gone === null ? null : `Remove volume ${gone}?`}
        verb="Remove"
        act={remove}
        close={() => setGone(null)}
      >
        Its files are kept. Refused while unfinished jobs use it.
      </Confirm>
    </div>
  );
}
