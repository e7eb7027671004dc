import "@fontsource-variable/inter/index.css";
import "@fontsource-variable/jetbrains-mono/index.css";
import "./design/tokens.css";
import "./design/base.css";
import "./design/parts.css";
import "./design/shell.css";
import "./design/pages.css";
import "./design/queue.css";
import "./design/planner.css";
import "./design/studies.css";
import "./design/models.css";
import { QueryClientProvider } from "@tanstack/react-query";
import { RouterProvider } from "@tanstack/react-router";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { onLoggedOut } from "./api/client";
import { Toasts } from "./components/shell/toasts";
import { queryClient } from "./queryClient";
import { router } from "./router";

onLoggedOut(() => {
  const { pathname, href } = router.state.location;
  if (/^\/login(\/|$)/.test(pathname)) return;
  queryClient.clear();
  void router.navigate({ to: "/login", search: { next: href } });
});

const root = document.getElementById("root");
if (root === null) throw new Error("index.html has no #root");
createRoot(root).render(
  <StrictMode>
    <QueryClientProvider client={queryClient}>
      <RouterProvider router={router} />
      <Toasts />
    </QueryClientProvider>
  </StrictMode>,
);
