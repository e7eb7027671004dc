import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Bot, KeyRound, Plus, Trash2 } from "lucide-react";
import { useState } from "react";
import { api, unwrap } from "~/api/client";
import { keys, serviceAccountsQuery, serviceAccountTokensQuery } from "~/api/queries";
import { DataTable } from "~/components/dataTable";
import { Confirm, FormDialog } from "~/components/forms/dialogs";
import { CopyButton, Field } from "~/components/parts";
import { Ago, LocalTime } from "~/components/time";
import { toast } from "~/components/shell/toasts";

const DAY_S = 86_400;
const ROLES = ["viewer", "member", "admin"] as const;
const AT = "/api/v1/projects/{project}/service-accounts/{account}";

/** Users of programs, of this project alone. */
export function ServiceAccounts({ project, isAdmin }: { project: string; isAdmin: boolean }) {
  const query = useQuery(serviceAccountsQuery(project));
  const [isOpen, setOpen] = useState(false);
  const [gone, setGone] = useState<string | null>(null);
  const [shown, setShown] = useState<string | null>(null);
  const client = useQueryClient();
  const changed = () => client.invalidateQueries({ queryKey: [...keys.projects, project, "service-accounts"] });
  const create = async (data: FormData) => {
    const body = { name: String(data.get("name")), role: data.get("role") as (typeof ROLES)[number] };
    await unwrap(api.POST("/api/v1/projects/{project}/service-accounts", { params: { path: { project } }, body }));
    await changed();
  };
  const remove = async () => {
    const ended = await unwrap(api.DELETE(AT, { params: { path: { project, account: gone ?? "" } } }));
    if (ended.unfinished_jobs > 0) {
      toast(`${ended.unfinished_jobs} unfinished jobs of ${ended.name} continue.`);
    }
    setShown(null);
    await changed();
  };
  return (
    <section className="stack">
      <div className="row">
        <h2 className="grow">Service accounts</h2>
        {isAdmin && (
          <button type="button" className="button small" onClick={() => setOpen(true)}>
            <Plus size={14} aria-hidden="true" /> New service account
          </button>
        )}
      </div>
      <DataTable
        label="Service accounts"
        query={query}
        rowKey={(account) => account.name}
        empty={{
          icon: Bot,
          title: "No service accounts",
          description: "Programs use them: they have tokens and a role in this project, and no login.",
        }}
        columns={[
          { head: "Name", cell: (account) => <span className="strong nowrap">{account.name}</span> },
          { head: "Role", cell: (account) => account.role },
          { head: "Status", cell: (account) => (account.disabled_at ? "disabled" : "active") },
          { head: "Created", cell: (account) => <Ago at={account.created_at} /> },
          {
            head: <span className="only-read">Actions</span>,
            isRight: true,
            cell: (account) =>
              isAdmin && (
                <div className="row">
                  <button type="button" className="button quiet small" onClick={() => setShown(account.name)}>
                    Tokens
                  </button>
                  <button
                    type="button"
                    className="button quiet small danger"
                    onClick={() => setGone(account.name)}
                    aria-label={`Delete ${account.name}`}
                  >
                    <Trash2 size={14} aria-hidden="true" />
                  </button>
                </div>
              ),
          },
        ]}
      />
      {shown !== null && isAdmin && <Tokens project={project} account={shown} />}
      <FormDialog
        title="New service account"
        isOpen={isOpen}
        close={() => setOpen(false)}
        verb="Create"
        submit={create}
      >
        <Field label="Name" hint={`Such as ci: it is shown as ci@${project}.`}>
          {(props) => <input {...props} className="input" name="name" required maxLength={63} autoComplete="off" />}
        </Field>
        <Field label="Role">
          {(props) => (
            <select {...props} className="input" name="role" defaultValue="member">
              {ROLES.map((role) => (
                <option key={role}>{role}</option>
              ))}
            </select>
          )}
        </Field>
      </FormDialog>
      <Confirm title={gone === null ? null : `Delete ${gone}?`} verb="Delete" act={remove} close={() => setGone(null)}>
        Its tokens are revoked. Its unfinished jobs continue.
      </Confirm>
    </section>
  );
}

function Tokens({ project, account }: { project: string; account: string }) {
  const tokens = serviceAccountTokensQuery(project, account);
  const query = useQuery(tokens);
  const [isOpen, setOpen] = useState(false);
  const [text, setText] = useState<string | null>(null);
  const client = useQueryClient();
  const changed = () => client.invalidateQueries({ queryKey: tokens.queryKey });
  const create = async (data: FormData) => {
    const body = {
      name: String(data.get("name")),
      scopes: data.get("scope") === "read" ? (["read"] as "read"[]) : (["read", "write"] as ("read" | "write")[]),
      expires_in_s: Number(data.get("days")) * DAY_S,
    };
    const created = await unwrap(api.POST(`${AT}/tokens`, { params: { path: { project, account } }, body }));
    setText(created.token);
    await changed();
  };
  const revoke = async (token_id: string) => {
    await unwrap(api.DELETE(`${AT}/tokens/{token_id}`, { params: { path: { project, account, token_id } } }));
    await changed();
  };
  const showError = (error: unknown) => toast(error instanceof Error ? error.message : String(error), "bad");
  return (
    <div className="stack">
      <div className="row">
        <h3 className="grow">Tokens of {account}</h3>
        <button type="button" className="button small" onClick={() => setOpen(true)}>
          <Plus size={14} aria-hidden="true" /> New token
        </button>
      </div>
      {text !== null && (
        <div className="note good" role="status">
          <div className="grow stack tight">
            <b>Shown this once.</b>
            <code className="wrap">{text}</code>
          </div>
          <CopyButton text={text} />
        </div>
      )}
      <DataTable
        label={`Tokens of ${account}`}
        query={query}
        rowKey={(token) => token.id}
        empty={{ icon: KeyRound, title: "No tokens", description: "A program logs in with one." }}
        columns={[
          { head: "Name", cell: (token) => <span className="strong wrap">{token.name}</span> },
          { head: "Scopes", cell: (token) => token.scopes.join(", ") },
          { head: "Last used", cell: (token) => <Ago at={token.last_used_at} /> },
          {
            head: "Expires",
            cell: (token) =>
              token.revoked_at ? <span className="state tone-grey">revoked</span> : <LocalTime at={token.expires_at} />,
          },
          {
            head: <span className="only-read">Actions</span>,
            isRight: true,
            cell: (token) =>
              !token.revoked_at && (
                <button
                  type="button"
                  className="button quiet small danger"
                  onClick={() => revoke(token.id).catch(showError)}
                >
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
            </select>
          )}
        </Field>
        <Field label="Lifetime, days">
          {(props) => (
            <input
              {...props}
              className="input"
              name="days"
              type="number"
              min={1}
              max={3650}
              defaultValue={90}
              required
            />
          )}
        </Field>
      </FormDialog>
    </div>
  );
}
