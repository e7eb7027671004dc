import { QueryClient } from "@tanstack/react-query";
import { isTransient } from "./api/client";

export const queryClient = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 1_000,
      // While the API is unreachable every page waits for it; a refusal is shown immediately.
      retry: (_count, error) => isTransient(error),
      retryDelay: (count) => Math.min(1000 * 2 ** count, 4_000),
      // A browser that believes it is offline may still reach an API on its own machine.
      networkMode: "always",
    },
    mutations: { networkMode: "always" },
  },
});
