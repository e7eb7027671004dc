import { queryOptions } from "@tanstack/react-query";
import { api, unwrap } from "./client";
import { readPages } from "./paging";

/* Webhooks and their deliveries. Every mutation invalidates `webhookKeys.all`. */

export const webhookKeys = {
  all: ["webhooks"] as const,
  list: ["webhooks", "list"] as const,
  deliveries: (webhook: string) => ["webhooks", "deliveries", webhook] as const,
};

const LIVE_MS = 3_000;
const MANY = 1_000;

export const webhooksQuery = queryOptions({
  queryKey: webhookKeys.list,
  queryFn: () =>
    readPages(MANY, (cursor) =>
      unwrap(api.GET("/api/v1/webhooks", { params: { query: { limit: 200, ...(cursor ? { cursor } : {}) } } })),
    ).then((page) => page.items),
  refetchInterval: LIVE_MS,
});

/** The newest deliveries. */
export const deliveriesQuery = (webhook: string) =>
  queryOptions({
    queryKey: webhookKeys.deliveries(webhook),
    queryFn: () =>
      unwrap(
        api.GET("/api/v1/webhooks/{webhook}/deliveries", { params: { path: { webhook }, query: { limit: 50 } } }),
      ).then((page) => page.items),
    refetchInterval: LIVE_MS,
  });
