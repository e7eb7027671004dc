import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api, unwrap } from "~/api/client";
import { plannerKeys } from "~/api/planner";
import { keys } from "~/api/queries";
import type { Quota } from "~/api/types";
import { FormDialog } from "~/components/forms/dialogs";
import { Field, Warnings } from "~/components/parts";
import { toast } from "~/components/shell/toasts";
import { formatAmount, isShared, userChanges } from "./changes";
import { lineName } from "./section";
import { UserQuotas } from "./users";

const PARTS = ["limit", "guaranteed", "user_limit"] as const;
const HEADS = { limit: "Limit", guaranteed: "Guaranteed", user_limit: "Per user" };

/** Limits, guarantees and weight of a project. Blank: unlimited, or not guaranteed. */
export function QuotaForm({ quota, isOpen, close }: { quota: Quota; isOpen: boolean; close: () => void }) {
  const client = useQueryClient();
  const [warnings, setWarnings] = useState<readonly string[]>([]);
  const lines = quota.lines ?? [];
  const submit = async (form: FormData) => {
    const body: Record<string, unknown> = {};
    for (const part of PARTS) {
      const changes: Record<string, string | null> = {};
      for (const line of lines) {
        const field = form.get(`${part}.${line.what}`);
        if (field === null) continue;
        const text = String(field).trim();
        if (text !== formatAmount(line.what, line[part])) changes[line.what] = text === "" ? null : text;
      }
      if (Object.keys(changes).length > 0) body[part] = changes;
    }
    const weight = Number(form.get("weight"));
    if (Number.isNaN(weight)) throw new Error("The weight is a number above 0, such as 2.");
    if (weight !== quota.weight) body["weight"] = weight;
    const priority = String(form.get("max_priority")).trim();
    if (priority !== String(quota.max_priority ?? "")) body["max_priority"] = priority === "" ? null : priority;
    const names = [...form.keys()].flatMap((key) =>
      key.startsWith("user_weights.") ? [key.slice("user_weights.".length)] : [],
    );
    const ofUsers = userChanges(quota, names, (name) => form.get(name) as string | null);
    if (Object.keys(ofUsers.users).length > 0) body["users"] = ofUsers.users;
    if (Object.keys(ofUsers.user_guaranteed).length > 0) body["user_guaranteed"] = ofUsers.user_guaranteed;
    if (Object.keys(ofUsers.user_weights).length > 0) body["user_weights"] = ofUsers.user_weights;
    const params = { path: { project: quota.project } };
    const changed = await unwrap(api.PATCH("/api/v1/projects/{project}/quota", { params, body }));
    await client.invalidateQueries({ queryKey: plannerKeys.all });
    await client.invalidateQueries({ queryKey: keys.projects });
    toast(`Updated the quota of ${quota.project}.`);
    setWarnings(changed.warnings ?? []);
    return (changed.warnings ?? []).length === 0;
  };
  const leave = () => {
    setWarnings([]);
    close();
  };
  return (
    <FormDialog title={`Quota of ${quota.project}`} isOpen={isOpen} close={leave} verb="Set" submit={submit} isWide>
      <p className="dim">
        Guaranteed resources are reclaimed by preemption when the project needs them. Beyond them the project borrows
        idle resources up to the limit. Blank: no limit.
      </p>
      <Warnings warnings={warnings} />
      <div className="table-box">
        <table className="table quota-form">
          <thead>
            <tr>
              <th>
                <span className="only-read">What</span>
              </th>
              {PARTS.map((part) => (
                <th key={part}>{HEADS[part]}</th>
              ))}
            </tr>
          </thead>
          <tbody>
            {lines.map((line) => (
              <tr key={line.what}>
                <th scope="row" className={line.what.includes("/") ? "mono" : ""}>
                  {lineName(line.what)}
                </th>
                {PARTS.map((part) => (
                  <td key={part}>
                    {(part === "guaranteed" && line.what === "jobs") ||
                    (part !== "limit" && !isShared(line.what)) ? null : (
                      <input
                        className="input num"
                        name={`${part}.${line.what}`}
                        defaultValue={formatAmount(line.what, line[part])}
                        aria-label={`${HEADS[part]}, ${lineName(line.what)}`}
                        autoComplete="off"
                      />
                    )}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <div className="pair">
        <Field label="Weight" hint="Weight 2 gets twice the share of weight 1.">
          {(props) => (
            <input {...props} className="input num" name="weight" defaultValue={quota.weight} inputMode="decimal" />
          )}
        </Field>
        <Field label="Max priority" hint="low, normal, high, urgent, or 0 to 100. Blank: any.">
          {(props) => (
            <input {...props} className="input num" name="max_priority" defaultValue={quota.max_priority ?? ""} />
          )}
        </Field>
      </div>
      <UserQuotas quota={quota} />
    </FormDialog>
  );
}
