import { queryOptions } from "@tanstack/react-query";
import { api, unwrap } from "./client";
import { readPages } from "./paging";

/* Usage, prices and budgets. Every mutation invalidates `usageKeys.all`. */

export const usageKeys = {
  all: ["usage"] as const,
  report: (query: object) => ["usage", "report", query] as const,
  job: (job: string) => ["usage", "job", job] as const,
  prices: ["usage", "prices"] as const,
  budgets: ["usage", "budgets"] as const,
};

const CALM_MS = 60_000;
const MANY = 1_000;

interface UsageQuery {
  since: string;
  until?: string;
  group_by: string;
  interval: "day" | "month";
  project?: string;
}

export const usageQuery = (query: UsageQuery) =>
  queryOptions({
    queryKey: usageKeys.report(query),
    queryFn: () => unwrap(api.GET("/api/v1/usage", { params: { query } })),
    refetchInterval: CALM_MS,
  });

export const jobUsageQuery = (job: string) =>
  queryOptions({
    queryKey: usageKeys.job(job),
    queryFn: () => unwrap(api.GET("/api/v1/jobs/{job}/usage", { params: { path: { job } } })),
    refetchInterval: CALM_MS,
  });

export const pricesQuery = queryOptions({
  queryKey: usageKeys.prices,
  queryFn: () =>
    readPages(MANY, (cursor) =>
      unwrap(api.GET("/api/v1/prices", { params: { query: { limit: 200, ...(cursor ? { cursor } : {}) } } })),
    ).then((page) => page.items),
});

export const budgetsQuery = queryOptions({
  queryKey: usageKeys.budgets,
  queryFn: () =>
    readPages(MANY, (cursor) =>
      unwrap(api.GET("/api/v1/budgets", { params: { query: { limit: 200, ...(cursor ? { cursor } : {}) } } })),
    ).then((page) => page.items),
  refetchInterval: CALM_MS,
});
