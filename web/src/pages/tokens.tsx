import { useQuery, useQueryClient } from "@tanstack/react-query";
import { KeyRound, Plus } from "lucide-react";
import { useState } from "react";
import { api, unwrap } from "~/api/client";
import { keys, meQuery, tokensQuery } from "~/api/queries";
import type { Token } from "~/api/types";
import { DataTable } from "~/components/dataTable";
import { Confirm, FormDialog } from "~/components/forms/dialogs";
import { CopyButton, Field, PageHead } from "~/components/parts";
import { Ago, LocalTime } from "~/components/time";

type Scope = Token["scopes"][number];
/** Verbs for everything include those before them; each choice of a kind is one scope. */
const VERBS: Scope[] = ["read", "write", "admin"];
const KINDS = ["jobs", "files", "models", "endpoints"] as const;
const DAY_S = 86_400;

export function TokensPage() {
  const query = useQuery(tokensQuery);
  const { data: me } = useQuery(meQuery);
  const [isOpen, setOpen] = useState(false);
  const [newToken, setNewToken] = useState<{ name: string; token: string } | null>(null);
  const [revoked, setRevoked] = useState<Token | null>(null);
  const client = useQueryClient();
  const changed = () => client.invalidateQueries({ queryKey: keys.tokens });
  const create = async (data: FormData) => {
    const user = String(data.get("user") ?? "").trim();
    const days = Number(data.get("days"));
    const scope = data.get("scope") as Scope;
    const projects = String(data.get("projects") ?? "")
      .split(/[\s,]+/)
      .filter(Boolean);
    const body = {
      name: String(data.get("name")),
      scopes: VERBS.includes(scope) ? VERBS.slice(0, VERBS.indexOf(scope) + 1) : [scope],
      ...(projects.length > 0 ? { projects } : {}),
      ...(days > 0 ? { expires_in_s: days * DAY_S } : {}),
      ...(user ? { user } : {}),
    };
    const created = await unwrap(api.POST("/api/v1/tokens", { body }));
    setNewToken({ name: created.name, token: created.token });
    await changed();
  };
  const revoke = async () => {
    await unwrap(api.DELETE("/api/v1/tokens/{token_id}", { params: { path: { token_id: revoked?.id ?? "" } } }));
    await changed();
  };
  return (
    <div className="page-body">
      <PageHead title="Tokens" about="API tokens and browser sessions.">
        <button type="button" className="button primary" onClick={() => setOpen(true)}>
          <Plus size={15} aria-hidden="true" /> New token
        </button>
      </PageHead>
      {newToken !== null && (
        <div className="note good" role="status">
          <div className="grow stack tight">
            <b>Token “{newToken.name}”: shown this once.</b>
            <code className="wrap">{newToken.token}</code>
          </div>
          <CopyButton text={newToken.token} />
          <button type="button" className="button quiet small" onClick={() => setNewToken(null)}>
            Done
          </button>
        </div>
      )}
      <DataTable
        label="Tokens"
        query={query}
        rowKey={(token) => token.id}
        empty={{ icon: KeyRound, title: "No tokens", description: "Create one for a program or a colleague." }}
        columns={[
          { head: "Name", cell: (token) => <span className="strong wrap">{token.name}</span> },
          { head: "User", cell: (token) => token.user },
          { head: "Scopes", cell: (token) => token.scopes.join(", ") },
          { head: "Projects", cell: (token) => token.projects?.join(", ") ?? <span className="dim">all</span> },
          { head: "Last used", cell: (token) => <Ago at={token.last_used_at} /> },
          {
            head: "Expires",
            cell: (token) =>
              token.revoked_at ? (
                <span className="state tone-grey">revoked</span>
              ) : token.expires_at ? (
                <LocalTime at={token.expires_at} />
              ) : (
                <span className="dim">never</span>
              ),
          },
          {
            head: <span className="only-read">Actions</span>,
            isRight: true,
            cell: (token) =>
              !token.revoked_at && (
                <button type="button" className="button quiet small danger" onClick={() => setRevoked(token)}>
                  Revoke
                </button>
              ),
          },
        ]}
      />
      <FormDialog title="New token" isOpen={isOpen} close={() => setOpen(false)} verb="Create" submit={create}>
        <Field label="Name" hint="What the token is used for.">
          {(props) => <input {...props} className="input" name="name" required maxLength={100} autoComplete="off" />}
        </Field>
        <Field label="Scopes">
          {(props) => (
            <select {...props} className="input" name="scope" defaultValue="write">
              <option value="read">read</option>
              <option value="write">read and write</option>
              {me?.is_admin && <option value="admin">read, write and administrate</option>}
              {KINDS.map((kind) => (
                <optgroup key={kind} label={kind}>
                  <option value={`${kind}:read`}>{kind}:read</option>
                  <option value={`${kind}:write`}>{kind}:write</option>
                </optgroup>
              ))}
              {me?.is_admin && <option value="scim">scim, for an identity provider</option>}
            </select>
          )}
        </Field>
        <Field label="Projects" hint="Limits the token to these. Blank: all of yours.">
          {(props) => <input {...props} className="input" name="projects" list="own-projects" autoComplete="off" />}
        </Field>
        <datalist id="own-projects">
          {Object.keys(me?.projects ?? {}).map((project) => (
            <option key={project} value={project} />
          ))}
        </datalist>
        <Field label="Lifetime, days" hint="Blank: no expiry.">
          {(props) => (
            <input {...props} className="input" name="days" type="number" min={1} max={3650} defaultValue={90} />
          )}
        </Field>
        {me?.is_admin && (
          <Field label="User" hint="Blank: yourself.">
            {(props) => <input {...props} className="input" name="user" autoComplete="off" />}
          </Field>
        )}
      </FormDialog>
      <Confirm
        title={revoked === null ? null : `Revoke “${revoked.name}”?`}
        verb="Revoke"
        act={revoke}
        close={() => setRevoked(null)}
      >
        Requests with it are refused immediately. If it is this browser's session, you must log in again.
      </Confirm>
    </div>
  );
}
