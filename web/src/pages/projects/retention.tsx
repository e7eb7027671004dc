import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Pencil } from "lucide-react";
import { useState } from "react";
import { api, unwrap } from "~/api/client";
import { keys } from "~/api/queries";
import type { RetentionPolicy, RetentionPreviewLine } from "~/api/types";
import { FormDialog } from "~/components/forms/dialogs";
import { Failure, Field, Skeleton, Warnings } from "~/components/parts";
import { toast } from "~/components/shell/toasts";
import { bytes, number } from "~/lib/format";

const KINDS: Record<string, string> = {
  outputs: "Outputs",
  logs: "Logs",
  metrics: "Metrics",
  events: "Events",
  code: "Code",
  jobs: "Jobs, with everything",
};
const UNITS: [string, number][] = [
  ["d", 86_400],
  ["h", 3_600],
  ["m", 60],
];

/** "30d", as the API reads it; blank: for ever. */
function ageText(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined) return "";
  const unit = UNITS.find(([, size]) => seconds % size === 0);
  return unit ? `${seconds / unit[1]}${unit[0]}` : `${seconds}s`;
}

function consequence(line: RetentionPreviewLine): string {
  const size =
    line.bytes === null || line.bytes === undefined
      ? ""
      : `, ${line.is_partial ? "at least " : ""}${bytes(line.bytes)}`;
  return `${KINDS[line.kind] ?? line.kind} of ${number(line.jobs)} ended jobs${size} will be deleted within minutes.`;
}

/** For how long a project keeps data of ended jobs. */
export function RetentionSection({ project, isAdmin }: { project: string; isAdmin: boolean }) {
  const { data, error, refetch } = useQuery({
    queryKey: [...keys.projects, project, "retention"],
    queryFn: () => unwrap(api.GET("/api/v1/projects/{project}/retention", { params: { path: { project } } })),
  });
  const [isOpen, setOpen] = useState(false);
  return (
    <section className="stack">
      <div className="row">
        <h2 className="grow">Retention</h2>
        {isAdmin && data && (
          <button type="button" className="button small" onClick={() => setOpen(true)}>
            <Pencil size={14} aria-hidden="true" /> Set retention
          </button>
        )}
      </div>
      {data !== undefined ? (
        <section className="card" aria-label="Retention">
          <dl className="quota-facts">
            {Object.entries(KINDS).map(([kind, name]) => (
              <div key={kind}>
                <dt>{name}</dt>
                <dd className="num">{ageText(data.keep?.[kind]) || "for ever"}</dd>
              </div>
            ))}
          </dl>
        </section>
      ) : error !== null ? (
        <Failure error={error} retry={() => void refetch()} />
      ) : (
        <Skeleton rows={2} height={22} />
      )}
      {data && <RetentionForm policy={data} isOpen={isOpen} close={() => setOpen(false)} />}
    </section>
  );
}

/** Previews the change first; the same change again is applied. */
function RetentionForm({ policy, isOpen, close }: { policy: RetentionPolicy; isOpen: boolean; close: () => void }) {
  const client = useQueryClient();
  const [preview, setPreview] = useState({ change: "", warnings: [] as readonly string[] });
  const leave = () => {
    setPreview({ change: "", warnings: [] });
    close();
  };
  const submit = async (form: FormData) => {
    const params = { path: { project: policy.project } };
    const keep: Record<string, string | null> = {};
    for (const kind of Object.keys(KINDS)) {
      const text = String(form.get(kind)).trim();
      if (text !== ageText(policy.keep?.[kind])) keep[kind] = text === "" ? null : text;
    }
    const change = JSON.stringify(keep);
    if (change !== preview.change) {
      const found = await unwrap(api.POST("/api/v1/projects/{project}/retention/preview", { params, body: { keep } }));
      const lines = (found.lines ?? []).filter((line) => line.jobs > 0);
      if (lines.length > 0) {
        setPreview({ change, warnings: [...lines.map(consequence), "Press Set again to apply it."] });
        return false;
      }
    }
    await unwrap(api.PATCH("/api/v1/projects/{project}/retention", { params, body: { keep } }));
    await client.invalidateQueries({ queryKey: [...keys.projects, policy.project, "retention"] });
    toast(`Updated the retention of ${policy.project}.`);
    setPreview({ change: "", warnings: [] });
    return true;
  };
  return (
    <FormDialog title={`Retention of ${policy.project}`} isOpen={isOpen} close={leave} verb="Set" submit={submit}>
      <p className="dim">
        Data of ended jobs are deleted so long after their end. Pinned jobs and sources of registered models are kept.
        Blank: for ever.
      </p>
      <Warnings warnings={preview.warnings} />
      {Object.entries(KINDS).map(([kind, name]) => (
        <Field key={kind} label={name}>
          {(props) => (
            <input
              {...props}
              className="input"
              name={kind}
              defaultValue={ageText(policy.keep?.[kind])}
              placeholder="for ever, or such as 30d"
              autoComplete="off"
            />
          )}
        </Field>
      ))}
    </FormDialog>
  );
}
