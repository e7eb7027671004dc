import { useQuery, useQueryClient } from "@tanstack/react-query";
import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { KeySquare, Plus, Trash2, UserPlus, UsersRound } from "lucide-react";
import { useState } from "react";
import { api, unwrap } from "~/api/client";
import { keys, meQuery, membersQuery, projectQuery, secretsQuery, usersQuery } from "~/api/queries";
import type { Member } from "~/api/types";
import { DataTable } from "~/components/dataTable";
import { Confirm, FormDialog } from "~/components/forms/dialogs";
import { Skeleton, Failure, Field, PageHead } from "~/components/parts";
import { Ago } from "~/components/time";
import { toast } from "~/components/shell/toasts";
import { QuotaSection } from "./quota/section";
import { RetentionSection } from "./retention";
import { ServiceAccounts } from "./serviceAccounts";

const route = getRouteApi("/shell/projects/$project");
const ROLES = ["viewer", "member", "admin"] as const;
type Role = (typeof ROLES)[number];
const withoutServiceAccounts = (members: Member[]) => members.filter((member) => !member.is_service_account);

export function ProjectPage() {
  const { project: name } = route.useParams();
  const { data: project, error, isPending, refetch } = useQuery(projectQuery(name));
  const { data: me } = useQuery(meQuery);
  const [isLeaving, setLeaving] = useState(false);
  const client = useQueryClient();
  const navigate = useNavigate();
  if (isPending) {
    return (
      <div className="page-body">
        <Skeleton rows={6} />
      </div>
    );
  }
  if (project === undefined) {
    return (
      <div className="page-body">
        <Failure error={error} retry={() => void refetch()} />
      </div>
    );
  }
  const isAdmin = project.my_role === "admin" || me?.is_admin === true;
  const remove = async () => {
    await unwrap(api.DELETE("/api/v1/projects/{project}", { params: { path: { project: name } } }));
    await navigate({ to: "/projects" });
    await client.invalidateQueries({ queryKey: keys.projects });
  };
  return (
    <div className="page-body">
      <nav aria-label="Breadcrumb" className="crumbs">
        <Link to="/projects">Projects</Link>
      </nav>
      <PageHead title={name} about={project.description}>
        <Link to="/jobs" search={{ project: name }} className="button">
          Jobs
        </Link>
        {isAdmin && (
          <button type="button" className="button danger" onClick={() => setLeaving(true)}>
            <Trash2 size={15} aria-hidden="true" /> Delete
          </button>
        )}
      </PageHead>
      <QuotaSection project={name} isAdmin={me?.is_admin === true} />
      <RetentionSection project={name} isAdmin={isAdmin} />
      <Members project={name} isAdmin={isAdmin} />
      <ServiceAccounts project={name} isAdmin={isAdmin} />
      <Secrets project={name} isAdmin={isAdmin} />
      <Confirm
        title={isLeaving ? `Delete project ${name}?` : null}
        verb="Delete"
        act={remove}
        close={() => setLeaving(false)}
      >
        Refused while it has unfinished jobs. Its files are kept.
      </Confirm>
    </div>
  );
}

function Members({ project, isAdmin }: { project: string; isAdmin: boolean }) {
  const query = useQuery({ ...membersQuery(project), select: withoutServiceAccounts });
  const { data: users } = useQuery(usersQuery);
  const [isOpen, setOpen] = useState(false);
  const client = useQueryClient();
  const changed = () => client.invalidateQueries({ queryKey: [...keys.projects, project] });
  const put = async (user: string, role: Role) => {
    await unwrap(
      api.PUT("/api/v1/projects/{project}/members/{user}", { params: { path: { project, user } }, body: { role } }),
    );
    await changed();
  };
  const showError = (error: unknown) => toast(error instanceof Error ? error.message : String(error), "bad");
  const remove = async (user: string) => {
    await unwrap(api.DELETE("/api/v1/projects/{project}/members/{user}", { params: { path: { project, user } } }));
    await changed();
  };
  return (
    <section className="stack">
      <div className="row">
        <h2 className="grow">Members</h2>
        {isAdmin && (
          <button type="button" className="button small" onClick={() => setOpen(true)}>
            <UserPlus size={14} aria-hidden="true" /> Add a member
          </button>
        )}
      </div>
      <DataTable
        label="Members"
        query={query}
        rowKey={(member) => member.user}
        empty={{ icon: UsersRound, title: "No members", description: "Platform admins can always see the project." }}
        columns={[
          { head: "User", cell: (member) => <span className="strong nowrap">{member.user}</span> },
          {
            head: "Role",
            cell: (member) =>
              isAdmin ? (
                <select
                  className="input auto"
                  aria-label={`Role of ${member.user}`}
                  value={member.role}
                  onChange={(event) => put(member.user, event.target.value as Role).catch(showError)}
                >
                  {ROLES.map((role) => (
                    <option key={role}>{role}</option>
                  ))}
                </select>
              ) : (
                member.role
              ),
          },
          {
            head: "Permissions",
            cell: (member) => (
              <span className="dim">
                {
                  { viewer: "read", member: "submit and manage jobs", admin: "also manage members and secrets" }[
                    member.role
                  ]
                }
              </span>
            ),
          },
          {
            head: <span className="only-read">Actions</span>,
            isRight: true,
            cell: (member) =>
              isAdmin && (
                <button
                  type="button"
                  className="button quiet small danger"
                  onClick={() => remove(member.user).catch(showError)}
                  aria-label={`Remove ${member.user}`}
                >
                  <Trash2 size={14} aria-hidden="true" />
                </button>
              ),
          },
        ]}
      />
      <FormDialog
        title="Add a member"
        isOpen={isOpen}
        close={() => setOpen(false)}
        verb="Add"
        submit={(data) => put(String(data.get("user")), data.get("role") as Role)}
      >
        <Field label="User">
          {(props) => (
            <>
              <input {...props} className="input" name="user" required list="known-users" autoComplete="off" />
              <datalist id="known-users">
                {(users ?? []).map((user) => (
                  <option key={user.name} value={user.name} />
                ))}
              </datalist>
            </>
          )}
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
    </section>
  );
}

function Secrets({ project, isAdmin }: { project: string; isAdmin: boolean }) {
  const query = useQuery(secretsQuery(project));
  const [isOpen, setOpen] = useState(false);
  const [gone, setGone] = useState<string | null>(null);
  const client = useQueryClient();
  const changed = () => client.invalidateQueries({ queryKey: [...keys.projects, project, "secrets"] });
  const put = async (data: FormData) => {
    const params = { path: { project, name: String(data.get("name")) } };
    await unwrap(
      api.PUT("/api/v1/projects/{project}/secrets/{name}", { params, body: { value: String(data.get("value")) } }),
    );
    await changed();
  };
  const remove = async () => {
    await unwrap(
      api.DELETE("/api/v1/projects/{project}/secrets/{name}", { params: { path: { project, name: gone ?? "" } } }),
    );
    await changed();
  };
  return (
    <section className="stack">
      <div className="row">
        <h2 className="grow">Secrets</h2>
        {isAdmin && (
          <button type="button" className="button small" onClick={() => setOpen(true)}>
            <Plus size={14} aria-hidden="true" /> Set a secret
          </button>
        )}
      </div>
      <DataTable
        label="Secrets"
        query={query}
        rowKey={(secret) => secret.name}
        empty={{
          icon: KeySquare,
          title: "No secrets",
          description: "Jobs that name a secret get it as an environment variable. The value is never shown.",
        }}
        columns={[
          { head: "Name", cell: (secret) => <span className="mono">{secret.name}</span> },
          { head: "Updated", cell: (secret) => <Ago at={secret.updated_at} /> },
          {
            head: <span className="only-read">Actions</span>,
            isRight: true,
            cell: (secret) =>
              isAdmin && (
                <button
                  type="button"
                  className="button quiet small danger"
                  onClick={() => setGone(secret.name)}
                  aria-label={`Remove ${secret.name}`}
                >
                  <Trash2 size={14} aria-hidden="true" />
                </button>
              ),
          },
        ]}
      />
      <FormDialog title="Set a secret" isOpen={isOpen} close={() => setOpen(false)} verb="Set" submit={put}>
        <Field label="Name" hint="Name of the environment variable, such as WANDB_API_KEY.">
          {(props) => <input {...props} className="input mono" name="name" required autoComplete="off" />}
        </Field>
        <Field label="Value">
          {(props) => <textarea {...props} className="input mono" name="value" rows={3} required autoComplete="off" />}
        </Field>
      </FormDialog>
      <Confirm title={gone === null ? null : `Remove ${gone}?`} verb="Remove" act={remove} close={() => setGone(null)}>
        Waiting jobs that use it will fail to start.
      </Confirm>
    </section>
  );
}
