import { queryOptions } from "@tanstack/react-query";
import { api, unwrap } from "./client";
import { readPages } from "./paging";

/* Notification channels and what was sent. Every mutation invalidates `channelKeys.all`. */

export const channelKeys = {
  all: ["channels"] as const,
  list: ["channels", "list"] as const,
  history: (channel: string) => ["channels", "history", channel] as const,
};

const LIVE_MS = 3_000;
const MANY = 1_000;

export const channelsQuery = queryOptions({
  queryKey: channelKeys.list,
  queryFn: () =>
    readPages(MANY, (cursor) =>
      unwrap(
        api.GET("/api/v1/notification-channels", { params: { query: { limit: 200, ...(cursor ? { cursor } : {}) } } }),
      ),
    ).then((page) => page.items),
});

/** The newest notifications. */
export const notificationsQuery = (channel: string) =>
  queryOptions({
    queryKey: channelKeys.history(channel),
    queryFn: () =>
      unwrap(
        api.GET("/api/v1/notification-channels/{channel}/notifications", {
          params: { path: { channel }, query: { limit: 50 } },
        }),
      ).then((page) => page.items),
    refetchInterval: LIVE_MS,
  });
