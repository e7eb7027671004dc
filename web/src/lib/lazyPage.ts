import { lazyRouteComponent } from "@tanstack/react-router";

const WAITS_MS = [250, 1_000, 3_000];

/**
 * A page's code, loaded when it is first shown. A failed download (the network changed, the API
 * just restarted) is retried; after that the router reloads the whole page once.
 */
export const lazyPage: typeof lazyRouteComponent = (load, name) => lazyRouteComponent(() => tried(load), name);

async function tried<T>(load: () => Promise<T>): Promise<T> {
  for (const waitMs of WAITS_MS) {
    try {
      return await load();
    } catch {
      await new Promise((resolve) => setTimeout(resolve, waitMs));
    }
  }
  return load();
}
