import { QueryClient } from "@tanstack/react-query";
import { isPassing } from "./api/client";

export const queryClient = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 1_000,
      // While the API is away every page waits for it; a refusal is told at once.
      retry: (_count, error) => isPassing(error),
      retryDelay: (count) => Math.min(1000 * 2 ** count, 4_000),
      // A browser that believes to be offline may well reach an API on its own machine.
      networkMode: "always",
    },
    mutations: { networkMode: "always" },
  },
});
