import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Plus, Trash2 } from "lucide-react";
import { useState } from "react";
import { api, unwrap } from "~/api/client";
import { plannerKeys, reservationsQuery } from "~/api/planner";
import { meQuery, nodesQuery, projectsQuery } from "~/api/queries";
import { Confirm, FormDialog } from "~/components/forms/dialogs";
import { Failure, Field } from "~/components/parts";
import { LocalTime } from "~/components/time";
import { toast } from "~/components/shell/toasts";
import type { Reservation } from "~/api/types";

const HOUR = 3_600_000;

/** Reserved nodes: visible to all, created and deleted by platform admins. */
export function ReservationsDialog({ isOpen, close }: { isOpen: boolean; close: () => void }) {
  const { data, error } = useQuery({ ...reservationsQuery, enabled: isOpen });
  const { data: me } = useQuery(meQuery);
  const [isMaking, setMaking] = useState(false);
  const [gone, setGone] = useState<Reservation | null>(null);
  const client = useQueryClient();
  const changed = () => client.invalidateQueries({ queryKey: plannerKeys.all });
  const remove = async () => {
    await unwrap(
      api.DELETE("/api/v1/reservations/{reservation}", { params: { path: { reservation: gone?.id ?? "" } } }),
    );
    await changed();
  };
  const items = data?.items ?? [];
  return (
    <>
      <FormDialog
        title="Reservations"
        isOpen={isOpen && !isMaking}
        close={close}
        verb="Done"
        submit={() => Promise.resolve()}
        isWide
      >
        <p className="dim">
          During a reservation only the project's jobs may use the nodes; other jobs there are preempted.
        </p>
        {error !== null && <Failure error={error} />}
        {items.length === 0 ? (
          <p className="dimmer">No reservations.</p>
        ) : (
          <ul className="plain-list reservations">
            {items.map((each) => (
              <li key={each.id} className="row">
                <div className="grow stack tight">
                  <span>
                    <span className="strong">{each.name ?? "Another project's"}</span>{" "}
                    {each.project && <span className="dim">for {each.project}</span>}{" "}
                    {each.is_active && <span className="tag tone-amber">now</span>}
                  </span>
                  <span className="dim small">
                    <LocalTime at={each.begins_at} /> to <LocalTime at={each.ends_at} />
                  </span>
                  <span className="mono small wrap">{each.nodes.join(", ")}</span>
                </div>
                {me?.is_admin && (
                  <button
                    type="button"
                    className="button quiet small danger"
                    aria-label={`Delete ${each.name}`}
                    onClick={() => setGone(each)}
                  >
                    <Trash2 size={14} aria-hidden="true" />
                  </button>
                )}
              </li>
            ))}
          </ul>
        )}
        {me?.is_admin && (
          <div>
            <button type="button" className="button small" onClick={() => setMaking(true)}>
              <Plus size={14} aria-hidden="true" /> Reserve nodes
            </button>
          </div>
        )}
      </FormDialog>
      <ReserveDialog isOpen={isOpen && isMaking} close={() => setMaking(false)} changed={changed} />
      <Confirm
        title={gone === null ? null : `Delete ${gone.name ?? gone.id}?`}
        verb="Delete"
        act={remove}
        close={() => setGone(null)}
      >
        Other projects can use its nodes immediately.
      </Confirm>
    </>
  );
}

/** Value of a datetime-local input. */
function local(ms: number): string {
  const at = new Date(ms - new Date(ms).getTimezoneOffset() * 60_000);
  return at.toISOString().slice(0, 16);
}

function ReserveDialog({
  isOpen,
  close,
  changed,
}: {
  isOpen: boolean;
  close: () => void;
  changed: () => Promise<unknown>;
}) {
  const { data: projects } = useQuery({ ...projectsQuery, enabled: isOpen });
  const { data: nodes } = useQuery({ ...nodesQuery, enabled: isOpen });
  const submit = async (form: FormData) => {
    const text = (name: string) => String(form.get(name) ?? "").trim();
    const labels = text("selector")
      .split(/[\s,]+/)
      .filter(Boolean)
      .map((pair) => pair.split("=", 2) as [string, string?]);
    const reservation = await unwrap(
      api.POST("/api/v1/reservations", {
        body: {
          name: text("name"),
          project: text("project"),
          ...(text("nodes") ? { nodes: text("nodes").split(/[\s,]+/) } : {}),
          ...(labels.length > 0
            ? { node_selector: Object.fromEntries(labels.map(([key, value]) => [key, value ?? ""])) }
            : {}),
          ...(text("count") ? { count: Number(text("count")) } : {}),
          ...(text("begins") ? { begins_at: new Date(text("begins")).toISOString() } : {}),
          ends_at: new Date(text("ends")).toISOString(),
        },
      }),
    );
    await changed();
    toast(
      [`${reservation.nodes.join(", ")} reserved for ${reservation.project}.`, ...(reservation.warnings ?? [])].join(
        " ",
      ),
    );
  };
  const now = Date.now();
  return (
    <FormDialog title="Reserve nodes" isOpen={isOpen} close={close} verb="Reserve" submit={submit}>
      <div className="pair">
        <Field label="Name">
          {(props) => <input {...props} className="input" name="name" required autoComplete="off" />}
        </Field>
        <Field label="Project">
          {(props) => (
            <select {...props} className="input" name="project" required>
              {(projects ?? []).map((project) => (
                <option key={project.name}>{project.name}</option>
              ))}
            </select>
          )}
        </Field>
      </div>
      <Field label="Nodes" hint={`By name, or by labels below. The cluster has ${(nodes ?? []).length}.`}>
        {(props) => (
          <>
            <input
              {...props}
              className="input mono"
              name="nodes"
              list="known-nodes"
              autoComplete="off"
              placeholder="h100-0 h100-1"
            />
            <datalist id="known-nodes">
              {(nodes ?? []).map((node) => (
                <option key={node.name} value={node.name} />
              ))}
            </datalist>
          </>
        )}
      </Field>
      <div className="pair">
        <Field label="Labels">
          {(props) => (
            <input {...props} className="input mono" name="selector" autoComplete="off" placeholder="pool=h100" />
          )}
        </Field>
        <Field label="Node count" hint="Blank: all.">
          {(props) => <input {...props} className="input num" name="count" type="number" min={1} />}
        </Field>
      </div>
      <div className="pair">
        <Field label="Start" hint="Blank: now.">
          {(props) => <input {...props} className="input" name="begins" type="datetime-local" min={local(now)} />}
        </Field>
        <Field label="End">
          {(props) => (
            <input
              {...props}
              className="input"
              name="ends"
              type="datetime-local"
              required
              defaultValue={local(now + 24 * HOUR)}
            />
          )}
        </Field>
      </div>
    </FormDialog>
  );
}
