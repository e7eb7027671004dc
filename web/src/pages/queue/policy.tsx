import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { api, unwrap } from "~/api/client";
import { plannerKeys, policyQuery } from "~/api/planner";
import { meQuery } from "~/api/queries";
import type { Setting } from "~/api/types";
import { FormDialog } from "~/components/forms/dialogs";
import { Skeleton, Failure, Field, Warnings } from "~/components/parts";
import { toast } from "~/components/shell/toasts";

/** The planner's settings: readable by all, writable by platform admins. */
export function PolicyDialog({ isOpen, close }: { isOpen: boolean; close: () => void }) {
  const { data, error } = useQuery({ ...policyQuery, enabled: isOpen });
  const { data: me } = useQuery(meQuery);
  const client = useQueryClient();
  const [warnings, setWarnings] = useState<readonly string[] | null>(null);
  const isAdmin = me?.is_admin === true;
  const leave = () => {
    setWarnings(null);
    close();
  };
  const submit = async (form: FormData) => {
    const settings: Record<string, unknown> = {};
    for (const setting of data?.settings ?? []) {
      const text =
        setting.kind === "switch"
          ? form.has(setting.name)
            ? "on"
            : "off"
          : String(form.get(setting.name) ?? "").trim();
      if (text !== setting.text) settings[setting.name] = text;
    }
    if (!isAdmin || Object.keys(settings).length === 0) return true;
    const changed = await unwrap(api.PATCH("/api/v1/policy", { body: { settings } }));
    await client.invalidateQueries({ queryKey: plannerKeys.all });
    toast("Policy updated; it applies from the next plan.");
    setWarnings(changed.warnings ?? []);
    return (changed.warnings ?? []).length === 0;
  };
  return (
    <FormDialog
      title="Scheduling policy"
      isOpen={isOpen}
      close={leave}
      verb={isAdmin ? "Set" : "Done"}
      submit={submit}
      isWide
    >
      {error !== null && <Failure error={error} />}
      <Warnings warnings={warnings ?? data?.warnings ?? []} />
      {data === undefined ? (
        <Skeleton rows={8} height={30} />
      ) : (
        <fieldset className="settings" disabled={!isAdmin} key={data.updated_at ?? ""}>
          <legend className="only-read">Settings</legend>
          {data.settings.map((setting) => (
            <SettingField key={setting.name} setting={setting} />
          ))}
        </fieldset>
      )}
    </FormDialog>
  );
}

function SettingField({ setting }: { setting: Setting }) {
  const hint =
    setting.text === setting.default_text ? setting.meaning : `${setting.meaning} Default: ${setting.default_text}.`;
  const label = setting.name.replaceAll("_", " ");
  return (
    <Field label={label} hint={hint}>
      {(props) =>
        setting.kind === "choice" ? (
          <select {...props} className="input" name={setting.name} defaultValue={setting.text}>
            {(setting.choices ?? []).map((choice) => (
              <option key={choice}>{choice}</option>
            ))}
          </select>
        ) : setting.kind === "switch" ? (
          <input
            {...props}
            type="checkbox"
            className="check"
            name={setting.name}
            defaultChecked={setting.value === true}
          />
        ) : (
          <input {...props} className="input num" name={setting.name} defaultValue={setting.text} autoComplete="off" />
        )
      }
    </Field>
  );
}
