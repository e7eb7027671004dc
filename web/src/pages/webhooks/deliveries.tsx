import { useQuery, useQueryClient } from "@tanstack/react-query";
import { RotateCw, Send } from "lucide-react";
import { api, unwrap } from "~/api/client";
import type { Delivery, Webhook } from "~/api/types";
import { deliveriesQuery, webhookKeys } from "~/api/webhooks";
import { DataTable } from "~/components/dataTable";
import { Ago } from "~/components/time";

const TONES: Record<Delivery["state"], string> = { waiting: "amber", delivered: "green", dead: "red" };

/** The newest deliveries of a webhook, with the responses. */
export function Deliveries({ webhook }: { webhook: Webhook }) {
  const query = useQuery(deliveriesQuery(webhook.id));
  const client = useQueryClient();
  const replay = async (delivery: number) => {
    const path = { webhook: webhook.id, delivery };
    await unwrap(api.POST("/api/v1/webhooks/{webhook}/deliveries/{delivery}/replay", { params: { path } }));
    await client.invalidateQueries({ queryKey: webhookKeys.all });
  };
  return (
    <>
      <h2 className="section-title wrap">Deliveries to {webhook.url}</h2>
      <DataTable
        label="Deliveries"
        query={query}
        rowKey={(delivery) => String(delivery.id)}
        empty={{ icon: Send, title: "No deliveries", description: "Send a test to see what the endpoint answers." }}
        columns={[
          { head: "Time", cell: (delivery) => <Ago at={delivery.created_at} /> },
          { head: "Event", cell: (delivery) => delivery.event_type },
          {
            head: "Status",
            cell: (delivery) => <span className={`state tone-${TONES[delivery.state]}`}>{delivery.state}</span>,
          },
          { head: "Attempts", isRight: true, cell: (delivery) => delivery.attempts },
          {
            head: "Response",
            cell: (delivery) => (
              <span className="wrap">
                {delivery.error || [delivery.response_status, delivery.response_excerpt].filter(Boolean).join(" ")}
              </span>
            ),
          },
          { head: "Next attempt", cell: (delivery) => <Ago at={delivery.next_at} /> },
          {
            head: <span className="only-read">Actions</span>,
            isRight: true,
            cell: (delivery) => (
              <button
                type="button"
                className="button quiet small"
                disabled={!webhook.is_enabled}
                onClick={() => void replay(delivery.id)}
                aria-label={`Replay delivery ${delivery.id}`}
              >
                <RotateCw size={14} aria-hidden="true" /> Replay
              </button>
            ),
          },
        ]}
      />
    </>
  );
}
