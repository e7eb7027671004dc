import { lazyRouteComponent } from "@tanstack/react-router";

const WAITS_MS = [250, 1_000, 3_000];

/**
 * A page's part of the application, loaded when it is first shown. What was lost on its way (the network changed, the API
 * was just started anew) is asked for again; then the router loads the whole page again, once.
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
