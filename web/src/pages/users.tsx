import { useQuery, useQueryClient } from "@tanstack/react-query";
import { UserPlus, UsersRound } from "lucide-react";
import { useState } from "react";
import { api, unwrap } from "~/api/client";
import { keys, meQuery, usersQuery } from "~/api/queries";
import { DataTable } from "~/components/dataTable";
import { FormDialog } from "~/components/forms/dialogs";
import { Field, PageHead } from "~/components/parts";
import { Ago } from "~/components/time";
import { toast } from "~/components/shell/toasts";

export function UsersPage() {
  const query = useQuery(usersQuery);
  const { data: me } = useQuery(meQuery);
  const [isOpen, setOpen] = useState(false);
  const client = useQueryClient();
  const create = async (data: FormData) => {
    await unwrap(
      api.POST("/api/v1/users", { body: { name: String(data.get("name")), is_admin: data.get("is_admin") === "on" } }),
    );
    await client.invalidateQueries({ queryKey: keys.users });
  };
  const update = async (user: string, body: { is_admin?: boolean; is_disabled?: boolean }) => {
    try {
      await unwrap(api.PATCH("/api/v1/users/{user}", { params: { path: { user } }, body }));
      await client.invalidateQueries({ queryKey: keys.users });
    } catch (error) {
      toast(error instanceof Error ? error.message : String(error), "bad");
    }
  };
  return (
    <div className="page-body">
      <PageHead
        title="Users"
        about={me?.is_admin ? "All users of the platform." : "You and the members of your projects."}
      >
        {me?.is_admin && (
          <button type="button" className="button primary" onClick={() => setOpen(true)}>
            <UserPlus size={15} aria-hidden="true" /> New user
          </button>
        )}
      </PageHead>
      <DataTable
        label="Users"
        query={query}
        rowKey={(user) => user.name}
        empty={{ icon: UsersRound, title: "No users", description: "" }}
        columns={[
          { head: "Name", cell: (user) => <span className="strong">{user.name}</span> },
          {
            head: "Platform",
            cell: (user) =>
              user.is_admin ? (
                <span className="tag">admin</span>
              ) : (
                <span className="dimmer">{user.is_service_account ? "service account" : "user"}</span>
              ),
          },
          {
            head: "State",
            cell: (user) =>
              user.disabled_at ? (
                <span className="state tone-red">disabled</span>
              ) : (
                <span className="state tone-green">active</span>
              ),
          },
          { head: "Created", cell: (user) => <Ago at={user.created_at} /> },
          {
            head: <span className="only-read">Actions</span>,
            isRight: true,
            cell: (user) =>
              me?.is_admin && (
                <span className="row end">
                  <button
                    type="button"
                    className="button quiet small"
                    onClick={() => update(user.name, { is_admin: !user.is_admin })}
                  >
                    {user.is_admin ? "Revoke admin" : "Make admin"}
                  </button>
                  <button
                    type="button"
                    className="button quiet small"
                    onClick={() => update(user.name, { is_disabled: !user.disabled_at })}
                  >
                    {user.disabled_at ? "Enable" : "Disable"}
                  </button>
                </span>
              ),
          },
        ]}
      />
      <FormDialog title="New user" isOpen={isOpen} close={() => setOpen(false)} verb="Create" submit={create}>
        <Field label="Name" hint="The user logs in with a token created under Tokens.">
          {(props) => <input {...props} className="input" name="name" required maxLength={63} autoComplete="off" />}
        </Field>
        <label className="row">
          <input type="checkbox" className="check" name="is_admin" /> Platform admin, with all permissions
        </label>
      </FormDialog>
    </div>
  );
}
