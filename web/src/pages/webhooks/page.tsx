import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Plus, Webhook as WebhookIcon } from "lucide-react";
import { useState } from "react";
import { api, unwrap } from "~/api/client";
import { meQuery } from "~/api/queries";
import type { Webhook } from "~/api/types";
import { webhookKeys, webhooksQuery } from "~/api/webhooks";
import { DataTable } from "~/components/dataTable";
import { Confirm, FormDialog } from "~/components/forms/dialogs";
import { TextInput } from "~/components/forms/textInput";
import { CopyButton, Field, PageHead } from "~/components/parts";
import { Deliveries } from "./deliveries";

const PLATFORM = "";

/** Webhooks of the projects that the user is admin of, and of the platform. */
export function WebhooksPage() {
  const query = useQuery(webhooksQuery);
  const [chosenId, setChosenId] = useState<string | null>(null);
  const [isOpen, setOpen] = useState(false);
  const [secret, setSecret] = useState<string | null>(null);
  const [gone, setGone] = useState<Webhook | null>(null);
  const [rotated, setRotated] = useState<Webhook | null>(null);
  const client = useQueryClient();
  const changed = () => client.invalidateQueries({ queryKey: webhookKeys.all });
  const chosen = query.data?.find((webhook) => webhook.id === chosenId);
  const paramsOf = (webhook: Webhook | null) => ({ params: { path: { webhook: webhook?.id ?? "" } } });
  const remove = async () => {
    await unwrap(api.DELETE("/api/v1/webhooks/{webhook}", paramsOf(gone)));
    await changed();
  };
  const rotate = async () => {
    const body = { overlap_hours: 24 };
    const view = await unwrap(api.POST("/api/v1/webhooks/{webhook}/rotate", { ...paramsOf(rotated), body }));
    setSecret(view.secret);
    await changed();
  };
  const test = async (webhook: Webhook) => {
    await unwrap(api.POST("/api/v1/webhooks/{webhook}/test", paramsOf(webhook)));
    setChosenId(webhook.id);
    await changed();
  };
  const toggle = async (webhook: Webhook) => {
    const body = { is_enabled: !webhook.is_enabled };
    await unwrap(api.PATCH("/api/v1/webhooks/{webhook}", { ...paramsOf(webhook), body }));
    await changed();
  };
  return (
    <div className="page-body">
      <PageHead title="Webhooks" about="Signed HTTP requests to other systems when something happens.">
        <button type="button" className="button primary" onClick={() => setOpen(true)}>
          <Plus size={15} aria-hidden="true" /> New webhook
        </button>
      </PageHead>
      {secret !== null && (
        <div className="note good" role="status">
          <div className="grow stack tight">
            <b>Secret: shown this once.</b>
            <code className="wrap">{secret}</code>
          </div>
          <CopyButton text={secret} />
          <button type="button" className="button quiet small" onClick={() => setSecret(null)}>
            Done
          </button>
        </div>
      )}
      <DataTable
        label="Webhooks"
        query={query}
        rowKey={(webhook) => webhook.id}
        empty={{ icon: WebhookIcon, title: "No webhooks", description: "Admins of a project can add one." }}
        columns={[
          {
            head: "URL",
            cell: (webhook) => (
              <button type="button" className="button quiet small wrap" onClick={() => setChosenId(webhook.id)}>
                {webhook.url}
              </button>
            ),
          },
          { head: "Project", cell: (webhook) => webhook.project ?? <span className="dim">whole platform</span> },
          { head: "Events", cell: (webhook) => <span className="wrap">{webhook.event_types.join(", ")}</span> },
          {
            head: "Status",
            cell: (webhook) => (
              <span className={`state tone-${webhook.is_enabled ? "green" : "grey"}`} title={webhook.disabled_reason}>
                {webhook.is_enabled ? "enabled" : "disabled"}
              </span>
            ),
          },
          { head: "Waiting", isRight: true, cell: (webhook) => webhook.waiting },
          { head: "Dead", isRight: true, cell: (webhook) => webhook.dead },
          {
            head: <span className="only-read">Actions</span>,
            isRight: true,
            cell: (webhook) => (
              <span className="row">
                {webhook.is_enabled && (
                  <button type="button" className="button quiet small" onClick={() => void test(webhook)}>
                    Test
                  </button>
                )}
                <button type="button" className="button quiet small" onClick={() => void toggle(webhook)}>
                  {webhook.is_enabled ? "Disable" : "Enable"}
                </button>
                <button type="button" className="button quiet small" onClick={() => setRotated(webhook)}>
                  Rotate
                </button>
                <button type="button" className="button quiet small danger" onClick={() => setGone(webhook)}>
                  Delete
                </button>
              </span>
            ),
          },
        ]}
      />
      {chosen && <Deliveries webhook={chosen} />}
      <CreateForm
        isOpen={isOpen}
        close={() => setOpen(false)}
        created={async (view) => {
          setSecret(view);
          await changed();
        }}
      />
      <Confirm
        title={gone && `Delete the webhook to ${gone.url}?`}
        verb="Delete"
        act={remove}
        close={() => setGone(null)}
      >
        Its deliveries are deleted, also those that wait.
      </Confirm>
      <Confirm title={rotated && "Replace the secret?"} verb="Replace" act={rotate} close={() => setRotated(null)}>
        Messages are signed with both secrets for 24 hours.
      </Confirm>
    </div>
  );
}

interface CreateFormProps {
  isOpen: boolean;
  close: () => void;
  created: (secret: string) => Promise<void>;
}

function CreateForm({ isOpen, close, created }: CreateFormProps) {
  const { data: me } = useQuery(meQuery);
  const own = Object.entries(me?.projects ?? {}).filter(([, role]) => role === "admin");
  const create = async (data: FormData) => {
    const project = String(data.get("project") ?? "");
    const body = {
      url: String(data.get("url")).trim(),
      event_types: String(data.get("event_types"))
        .split(/[\s,]+/)
        .filter(Boolean),
      project: project === PLATFORM ? null : project,
    };
    const view = await unwrap(api.POST("/api/v1/webhooks", { body }));
    await created(view.secret);
  };
  return (
    <FormDialog title="New webhook" isOpen={isOpen} close={close} verb="Create" submit={create}>
      {(errorOf) => (
        <>
          <TextInput
            name="url"
            label="URL"
            type="url"
            placeholder="https://example.com/hook"
            error={errorOf("url")}
            isRequired
          />
          <Field label="Project" error={errorOf("project")}>
            {(props) => (
              <select {...props} className="input" name="project">
                {own.map(([name]) => (
                  <option key={name}>{name}</option>
                ))}
                {me?.is_admin && <option value={PLATFORM}>the whole platform</option>}
              </select>
            )}
          </Field>
          <TextInput
            name="event_types"
            label="Events"
            defaultValue="job.*"
            hint="Such as job.failed, job.*, or * for all; separated by commas."
            error={errorOf("event_types")}
            isRequired
          />
        </>
      )}
    </FormDialog>
  );
}
