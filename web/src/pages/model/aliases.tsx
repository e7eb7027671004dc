import { Link } from "@tanstack/react-router";
import { Plus, X } from "lucide-react";
import { useState } from "react";
import { api, unwrap } from "~/api/client";
import type { Model, ModelVersion } from "~/api/types";
import { FormDialog } from "~/components/forms/dialogs";
import { Card, Field } from "~/components/parts";
import { TextInput } from "~/components/forms/textInput";
import { toast } from "~/components/shell/toasts";
import { useChanged } from "./actions";

interface AliasCardProps {
  model: Model;
  versions: readonly ModelVersion[];
  /** Shows only aliases of this version; new ones point to it. */
  only?: number;
}

/** The model's aliases, to move, add and remove. */
export function AliasCard({ model, versions, only }: AliasCardProps) {
  const [edited, setEdited] = useState<string | null>(null); // empty: a new alias
  const changed = useChanged(model.project, model.name);
  const aliases = Object.entries(model.aliases ?? {}).filter(([, version]) => only === undefined || version === only);
  const ready = versions.filter((version) => version.state === "ready");
  const path = { project: model.project, model: model.name };
  const remove = (alias: string) => {
    unwrap(
      api.DELETE("/api/v1/projects/{project}/models/{model}/aliases/{alias}", { params: { path: { ...path, alias } } }),
    )
      .then(changed)
      .then(() => toast(`Removed @${alias}.`))
      .catch((error: unknown) => toast(error instanceof Error ? error.message : String(error), "bad"));
  };
  const submit = async (data: FormData) => {
    const alias = edited || String(data.get("alias") ?? "").trim();
    const version = only ?? Number(data.get("version"));
    const reason = String(data.get("reason") ?? "");
    // Optimistic concurrency: the request fails if the alias was moved meanwhile.
    const expected = (model.aliases ?? {})[alias] ?? 0;
    const at = "/api/v1/projects/{project}/models/{model}/aliases/{alias}";
    await unwrap(api.PUT(at, { params: { path: { ...path, alias } }, body: { version, expected, reason } }));
    await changed();
    toast(`@${alias} points to version ${version}.`);
  };
  return (
    <Card
      title="Aliases"
      aside={
        ready.length > 0 && (
          <button type="button" className="button small" onClick={() => setEdited("")}>
            <Plus size={14} aria-hidden="true" /> Add
          </button>
        )
      }
    >
      {aliases.length === 0 ? (
        <p className="dim">
          No alias{only === undefined ? " yet" : " points to this version"}. An alias such as <code>prod</code> can be
          used in place of a version number, and moves atomically.
        </p>
      ) : (
        <ul className="stack tight">
          {aliases.map(([alias, version]) => (
            <li key={alias} className="row">
              <span className="tag tone-blue cut">@{alias}</span>
              <Link
                to="/models/$project/$model/versions/$version"
                params={{ ...path, version: String(version) }}
                className="num grow nowrap"
              >
                v{version}
              </Link>
              {only === undefined && (
                <button
                  type="button"
                  className="button quiet small"
                  aria-label={`Move ${alias}`}
                  onClick={() => setEdited(alias)}
                >
                  Move
                </button>
              )}
              <button
                type="button"
                className="button quiet icon small"
                aria-label={`Remove alias ${alias}`}
                onClick={() => remove(alias)}
              >
                <X size={14} aria-hidden="true" />
              </button>
            </li>
          ))}
        </ul>
      )}
      <FormDialog
        title={edited ? `Move @${edited}` : "Add an alias"}
        isOpen={edited !== null}
        close={() => setEdited(null)}
        verb={edited ? "Move" : "Add"}
        submit={submit}
      >
        {(errorOf) => (
          <>
            {!edited && (
              <TextInput
                name="alias"
                label="Alias"
                placeholder="prod"
                error={errorOf("alias")}
                hint="Letters, digits and hyphens."
              />
            )}
            {only === undefined && (
              <Field label="Version" error={errorOf("version") ?? errorOf("expected")}>
                {(props) => (
                  <select {...props} name="version" className="input" defaultValue={ready[0]?.version}>
                    {ready.map((version) => (
                      <option key={version.id} value={version.version}>
                        v{version.version}
                        {version.stage && version.stage !== "none" ? `, ${version.stage}` : ""}
                        {(model.aliases ?? {})[edited ?? ""] === version.version ? " (now)" : ""}
                      </option>
                    ))}
                  </select>
                )}
              </Field>
            )}
            <TextInput name="reason" label="Reason" placeholder="optional" />
          </>
        )}
      </FormDialog>
    </Card>
  );
}
