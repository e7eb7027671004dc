import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Bell, Plus } from "lucide-react";
import { useState } from "react";
import { api, unwrap } from "~/api/client";
import { channelKeys, channelsQuery, notificationsQuery } from "~/api/notifications";
import { meQuery } from "~/api/queries";
import type { Channel } from "~/api/types";
import { DataTable } from "~/components/dataTable";
import { Confirm, FormDialog } from "~/components/forms/dialogs";
import { TextInput } from "~/components/forms/textInput";
import { Field, PageHead } from "~/components/parts";
import { Ago } from "~/components/time";

const OWN_JOBS = "";
const TONES = { waiting: "amber", sent: "green", dead: "red" } as const;

/** Channels by which the user and the projects are notified. */
export function NotificationsPage() {
  const query = useQuery(channelsQuery);
  const [chosenId, setChosenId] = useState<string | null>(null);
  const [isOpen, setOpen] = useState(false);
  const [gone, setGone] = useState<Channel | null>(null);
  const client = useQueryClient();
  const changed = () => client.invalidateQueries({ queryKey: channelKeys.all });
  const chosen = query.data?.find((channel) => channel.id === chosenId);
  const paramsOf = (channel: Channel | null) => ({ params: { path: { channel: channel?.id ?? "" } } });
  const remove = async () => {
    await unwrap(api.DELETE("/api/v1/notification-channels/{channel}", paramsOf(gone)));
    await changed();
  };
  const test = async (channel: Channel) => {
    await unwrap(api.POST("/api/v1/notification-channels/{channel}/test", paramsOf(channel)));
    setChosenId(channel.id);
    await changed();
  };
  const toggle = async (channel: Channel) => {
    const body = { is_enabled: !channel.is_enabled };
    await unwrap(api.PATCH("/api/v1/notification-channels/{channel}", { ...paramsOf(channel), body }));
    await changed();
  };
  return (
    <div className="page-body">
      <PageHead title="Notifications" about="Messages to people by Slack, Teams, e-mail, ntfy and other services.">
        <button type="button" className="button primary" onClick={() => setOpen(true)}>
          <Plus size={15} aria-hidden="true" /> New channel
        </button>
      </PageHead>
      <DataTable
        label="Channels"
        query={query}
        rowKey={(channel) => channel.id}
        empty={{ icon: Bell, title: "No channels", description: "Add one to learn of the ends of your jobs." }}
        columns={[
          {
            head: "Service",
            cell: (channel) => (
              <button type="button" className="button quiet small wrap" onClick={() => setChosenId(channel.id)}>
                {channel.service}
              </button>
            ),
          },
          { head: "Of", cell: (channel) => channel.project ?? <span className="dim">your jobs</span> },
          { head: "Events", cell: (channel) => <span className="wrap">{channel.event_types.join(", ")}</span> },
          {
            head: "Status",
            cell: (channel) => (
              <span className={`state tone-${channel.is_enabled ? "green" : "grey"}`}>
                {channel.is_enabled ? "enabled" : "disabled"}
              </span>
            ),
          },
          {
            head: <span className="only-read">Actions</span>,
            isRight: true,
            cell: (channel) => (
              <span className="row">
                {channel.is_enabled && (
                  <button type="button" className="button quiet small" onClick={() => void test(channel)}>
                    Test
                  </button>
                )}
                <button type="button" className="button quiet small" onClick={() => void toggle(channel)}>
                  {channel.is_enabled ? "Disable" : "Enable"}
                </button>
                <button type="button" className="button quiet small danger" onClick={() => setGone(channel)}>
                  Delete
                </button>
              </span>
            ),
          },
        ]}
      />
      {chosen && <History channel={chosen} />}
      <CreateForm isOpen={isOpen} close={() => setOpen(false)} created={changed} />
      <Confirm title={gone && `Delete ${gone.service}?`} verb="Delete" act={remove} close={() => setGone(null)}>
        Notifications that wait are not sent.
      </Confirm>
    </div>
  );
}

function History({ channel }: { channel: Channel }) {
  const query = useQuery(notificationsQuery(channel.id));
  return (
    <>
      <h2 className="section-title wrap">Notifications to {channel.service}</h2>
      <DataTable
        label="History"
        query={query}
        rowKey={(notification) => String(notification.id)}
        empty={{ icon: Bell, title: "No notifications", description: "Send a test to see whether it arrives." }}
        columns={[
          { head: "Time", cell: (notification) => <Ago at={notification.created_at} /> },
          {
            head: "Status",
            cell: (notification) => (
              <span className={`state tone-${TONES[notification.state]}`}>{notification.state}</span>
            ),
          },
          { head: "Notification", cell: (notification) => <span className="wrap">{notification.text}</span> },
          { head: "Error", cell: (notification) => <span className="wrap">{notification.error}</span> },
        ]}
      />
    </>
  );
}

function CreateForm(props: { isOpen: boolean; close: () => void; created: () => Promise<void> }) {
  const { data: me } = useQuery(meQuery);
  const own = Object.entries(me?.projects ?? {}).filter(([, role]) => role === "admin");
  const create = async (data: FormData) => {
    const project = String(data.get("project") ?? "");
    const types = String(data.get("event_types"))
      .split(/[\s,]+/)
      .filter(Boolean);
    const body = {
      url: String(data.get("url")).trim(),
      project: project === OWN_JOBS ? null : project,
      ...(types.length > 0 ? { event_types: types } : {}),
    };
    await unwrap(api.POST("/api/v1/notification-channels", { body }));
    await props.created();
  };
  return (
    <FormDialog title="New channel" isOpen={props.isOpen} close={props.close} verb="Create" submit={create}>
      {(errorOf) => (
        <>
          <TextInput
            name="url"
            label="URL"
            placeholder="ntfys://my-topic"
            hint="Of a service of Apprise; it is stored encrypted and never shown."
            error={errorOf("url")}
            isRequired
          />
          <Field label="Events of" error={errorOf("project")}>
            {(field) => (
              <select {...field} className="input" name="project">
                <option value={OWN_JOBS}>your own jobs</option>
                {own.map(([name]) => (
                  <option key={name}>{name}</option>
                ))}
              </select>
            )}
          </Field>
          <TextInput
            name="event_types"
            label="Events"
            placeholder="job.failed, storage.*"
            hint="Blank: ends, failures, losses and full storage."
            error={errorOf("event_types")}
          />
        </>
      )}
    </FormDialog>
  );
}
