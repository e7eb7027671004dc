import {
  createRootRoute,
  createRoute,
  createRouter,
  lazyRouteComponent,
  Outlet,
  redirect,
} from "@tanstack/react-router";
import { Failure } from "./components/parts";
import { Shell } from "./components/shell/shell";
import { useTitle } from "./components/shell/useTitle";
import { readJobsSearch } from "./pages/jobs/filters";
import { JobsPage } from "./pages/jobs/page";
import { LoginPage, ProviderReturnPage } from "./pages/login";
import { NotFound } from "./pages/notFound";

/* All routes. Their first segments are also in `api/pages.py`, which serves this application there. */

const RETRY_AFTER_MS = [250, 1_000, 3_000];

/**
 * A page's code, loaded when it is first shown. A failed download (the network changed, the API
 * just restarted) is reloadWithRetry; after that the router reloads the whole page once.
 */
const lazyPage: typeof lazyRouteComponent = (load, name) => lazyRouteComponent(() => loadWithRetry(load), name);

async function loadWithRetry<T>(load: () => Promise<T>): Promise<T> {
  for (const waitMs of RETRY_AFTER_MS) {
    try {
      return await load();
    } catch {
      await new Promise((resolve) => setTimeout(resolve, waitMs));
    }
  }
  return load();
}

const rootRoute = createRootRoute({ component: Root });

export interface LogSearch {
  replica?: string;
  q?: string;
  attempt?: number;
  level?: string;
  rank?: number;
  since?: string;
  until?: string;
}

const isTime = (value: unknown): boolean => typeof value === "string" && !Number.isNaN(Date.parse(value));

const text = (value: unknown): string | undefined => (value === undefined || value === "" ? undefined : String(value));

const loginRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/login",
  component: LoginPage,
  validateSearch: (search: Record<string, unknown>) => ({
    ...(text(search["next"]) ? { next: String(search["next"]) } : {}),
    ...(text(search["code"]) ? { code: String(search["code"]) } : {}),
  }),
});

const providerReturnRoute = createRoute({
  getParentRoute: () => rootRoute,
  path: "/login/$provider",
  component: ProviderReturnPage,
});

const shellRoute = createRoute({ getParentRoute: () => rootRoute, id: "shell", component: Shell });

const indexRoute = createRoute({
  getParentRoute: () => shellRoute,
  path: "/",
  beforeLoad: () => {
    throw redirect({ to: "/jobs" });
  },
});

const jobsRoute = createRoute({
  getParentRoute: () => shellRoute,
  path: "/jobs",
  component: JobsPage,
  validateSearch: readJobsSearch,
});

const jobRoute = createRoute({
  getParentRoute: () => shellRoute,
  path: "/jobs/$job",
  component: lazyPage(() => import("./pages/job/page"), "JobPage"),
});

const tab = <Name extends string>(path: Name, load: () => Promise<Record<string, unknown>>, name: string) =>
  createRoute({
    getParentRoute: () => jobRoute,
    path,
    component: lazyPage(load as () => Promise<Record<string, never>>, name),
  });

const jobTabs = [
  tab("/", () => import("./pages/job/overview/page"), "Overview"),
  createRoute({
    getParentRoute: () => jobRoute,
    path: "/logs",
    component: lazyPage(() => import("./pages/job/logs/page"), "Logs"),
    validateSearch: (search: Record<string, unknown>): LogSearch => ({
      ...(text(search["replica"]) ? { replica: String(search["replica"]) } : {}),
      ...(text(search["q"]) ? { q: String(search["q"]) } : {}),
      ...(text(search["level"]) ? { level: String(search["level"]) } : {}),
      ...(Number(search["attempt"]) > 0 ? { attempt: Number(search["attempt"]) } : {}),
      ...(/^\d{1,7}$/.test(String(search["rank"])) ? { rank: Number(search["rank"]) } : {}),
      ...(isTime(search["since"]) ? { since: String(search["since"]) } : {}),
      ...(isTime(search["until"]) ? { until: String(search["until"]) } : {}),
    }),
  }),
  tab("/metrics", () => import("./pages/job/metrics/page"), "Metrics"),
  tab("/resources", () => import("./pages/job/metrics/resources"), "Resources"),
  tab("/checkpoints", () => import("./pages/job/checkpoints/list"), "Checkpoints"),
  createRoute({
    getParentRoute: () => jobRoute,
    path: "/checkpoint",
    component: lazyPage(() => import("./pages/job/checkpoints/page"), "CheckpointPage"),
    validateSearch: (search: Record<string, unknown>): { path?: string; other?: string; other_job?: string } => ({
      ...(text(search["path"]) ? { path: String(search["path"]) } : {}),
      ...(text(search["other"]) ? { other: String(search["other"]) } : {}),
      ...(text(search["other_job"]) ? { other_job: String(search["other_job"]) } : {}),
    }),
  }),
  createRoute({
    getParentRoute: () => jobRoute,
    path: "/files",
    component: lazyPage(() => import("./pages/job/files"), "Files"),
    validateSearch: (search: Record<string, unknown>): { path?: string } =>
      text(search["path"]) ? { path: String(search["path"]) } : {},
  }),
  tab("/events", () => import("./pages/job/events"), "Events"),
  tab("/spec", () => import("./pages/job/spec"), "Spec"),
];

const studiesRoute = createRoute({
  getParentRoute: () => shellRoute,
  path: "/studies",
  component: lazyPage(() => import("./pages/studies/page"), "StudiesPage"),
  validateSearch: (search: Record<string, unknown>): { q?: string; state?: string; project?: string; user?: string } =>
    Object.fromEntries(
      (["q", "state", "project", "user"] as const)
        .filter((name) => text(search[name]))
        .map((name) => [name, String(search[name])]),
    ),
});

const newStudyRoute = createRoute({
  getParentRoute: () => shellRoute,
  path: "/studies/new",
  component: lazyPage(() => import("./pages/studyNew/page"), "NewStudyPage"),
  validateSearch: (search: Record<string, unknown>): { from?: string } =>
    text(search["from"]) ? { from: String(search["from"]) } : {},
});

const studyRoute = createRoute({
  getParentRoute: () => shellRoute,
  path: "/studies/$study",
  component: lazyPage(() => import("./pages/study/page"), "StudyPage"),
});

const studyTab = <Name extends string>(path: Name, load: () => Promise<Record<string, unknown>>, name: string) =>
  createRoute({
    getParentRoute: () => studyRoute,
    path,
    component: lazyPage(load as () => Promise<Record<string, never>>, name),
  });

const studyTabs = [
  studyTab("/", () => import("./pages/study/overview"), "StudyOverview"),
  studyTab("/parameters", () => import("./pages/study/parameters"), "Parameters"),
  createRoute({
    getParentRoute: () => studyRoute,
    path: "/trials",
    component: lazyPage(() => import("./pages/study/trials"), "Trials"),
    validateSearch: (search: Record<string, unknown>): { trial?: number; sort?: string; state?: string } => ({
      ...(Number(search["trial"]) > 0 ? { trial: Number(search["trial"]) } : {}),
      ...(text(search["sort"]) ? { sort: String(search["sort"]) } : {}),
      ...(text(search["state"]) ? { state: String(search["state"]) } : {}),
    }),
  }),
  studyTab("/curves", () => import("./pages/study/curves"), "Curves"),
  studyTab("/spec", () => import("./pages/study/spec"), "StudySpecTab"),
];

const modelsRoute = createRoute({
  getParentRoute: () => shellRoute,
  path: "/models",
  component: lazyPage(() => import("./pages/models/page"), "ModelsPage"),
  validateSearch: (search: Record<string, unknown>): { q?: string; stage?: string; project?: string } =>
    Object.fromEntries(
      (["q", "stage", "project"] as const)
        .filter((name) => text(search[name]))
        .map((name) => [name, String(search[name])]),
    ),
});

const modelRoute = createRoute({
  getParentRoute: () => shellRoute,
  path: "/models/$project/$model",
  component: lazyPage(() => import("./pages/model/page"), "ModelPage"),
});

const modelTab = <Name extends string>(path: Name, load: () => Promise<Record<string, unknown>>, name: string) =>
  createRoute({
    getParentRoute: () => modelRoute,
    path,
    component: lazyPage(load as () => Promise<Record<string, never>>, name),
  });

const modelTabs = [
  modelTab("/", () => import("./pages/model/versions"), "Versions"),
  modelTab("/versions/$version", () => import("./pages/model/version"), "VersionPage"),
  createRoute({
    getParentRoute: () => modelRoute,
    path: "/compare",
    component: lazyPage(() => import("./pages/model/compare"), "CompareVersions"),
    validateSearch: (search: Record<string, unknown>): { versions?: string } =>
      text(search["versions"]) ? { versions: String(search["versions"]) } : {},
  }),
  modelTab("/history", () => import("./pages/model/history"), "ModelHistory"),
];

const projectSearch = (search: Record<string, unknown>): { project?: string } =>
  text(search["project"]) ? { project: String(search["project"]) } : {};

const endpointsRoute = createRoute({
  getParentRoute: () => shellRoute,
  path: "/endpoints",
  component: lazyPage(() => import("./pages/endpoints/page"), "EndpointsPage"),
  validateSearch: projectSearch,
});

const endpointRoute = createRoute({
  getParentRoute: () => shellRoute,
  path: "/endpoints/$project/$endpoint",
  component: lazyPage(() => import("./pages/endpoint/page"), "EndpointPage"),
});

const endpointTab = <Name extends string>(path: Name, load: () => Promise<Record<string, unknown>>, name: string) =>
  createRoute({
    getParentRoute: () => endpointRoute,
    path,
    component: lazyPage(load as () => Promise<Record<string, never>>, name),
  });

const endpointTabs = [
  endpointTab("/", () => import("./pages/endpoint/overview"), "EndpointOverview"),
  endpointTab("/try", () => import("./pages/endpoint/tryIt"), "TryIt"),
  endpointTab("/revisions", () => import("./pages/endpoint/revisions"), "Revisions"),
];

const batchRoute = createRoute({
  getParentRoute: () => shellRoute,
  path: "/batch-predictions",
  component: lazyPage(() => import("./pages/batch/page"), "BatchPage"),
  validateSearch: (search: Record<string, unknown>): { project?: string; model?: string } => ({
    ...projectSearch(search),
    ...(text(search["model"]) ? { model: String(search["model"]) } : {}),
  }),
});

const submitRoute = createRoute({
  getParentRoute: () => shellRoute,
  path: "/submit",
  component: lazyPage(() => import("./pages/submit/page"), "SubmitPage"),
  validateSearch: (search: Record<string, unknown>): { from?: string; checkpoint?: string } => ({
    ...(text(search["from"]) && { from: String(search["from"]) }),
    ...(text(search["checkpoint"]) && { checkpoint: String(search["checkpoint"]) }),
  }),
});

const compareRoute = createRoute({
  getParentRoute: () => shellRoute,
  path: "/compare",
  component: lazyPage(() => import("./pages/compare/page"), "ComparePage"),
  validateSearch: (search: Record<string, unknown>): { jobs?: string } =>
    text(search["jobs"]) ? { jobs: String(search["jobs"]) } : {},
});

const clusterRoute = createRoute({
  getParentRoute: () => shellRoute,
  path: "/cluster",
  component: lazyPage(() => import("./pages/cluster/page"), "ClusterPage"),
});

const queueRoute = createRoute({
  getParentRoute: () => shellRoute,
  path: "/queue",
  component: lazyPage(() => import("./pages/queue/page"), "QueuePage"),
  validateSearch: (search: Record<string, unknown>): { project?: string } =>
    text(search["project"]) ? { project: String(search["project"]) } : {},
});

const simulationsRoute = createRoute({
  getParentRoute: () => shellRoute,
  path: "/simulations",
  component: lazyPage(() => import("./pages/simulations/page"), "SimulationsPage"),
  validateSearch: (search: Record<string, unknown>): { id?: string; what?: string } => ({
    ...(text(search["id"]) ? { id: String(search["id"]) } : {}),
    ...(text(search["what"]) ? { what: String(search["what"]) } : {}),
  }),
});

const projectsRoute = createRoute({
  getParentRoute: () => shellRoute,
  path: "/projects",
  component: lazyPage(() => import("./pages/projects/list"), "ProjectsPage"),
});

const projectRoute = createRoute({
  getParentRoute: () => shellRoute,
  path: "/projects/$project",
  component: lazyPage(() => import("./pages/projects/page"), "ProjectPage"),
});

const usersRoute = createRoute({
  getParentRoute: () => shellRoute,
  path: "/users",
  component: lazyPage(() => import("./pages/users"), "UsersPage"),
});

const tokensRoute = createRoute({
  getParentRoute: () => shellRoute,
  path: "/tokens",
  component: lazyPage(() => import("./pages/tokens"), "TokensPage"),
});

const notificationsRoute = createRoute({
  getParentRoute: () => shellRoute,
  path: "/notifications",
  component: lazyPage(() => import("./pages/notifications/page"), "NotificationsPage"),
});

const webhooksRoute = createRoute({
  getParentRoute: () => shellRoute,
  path: "/webhooks",
  component: lazyPage(() => import("./pages/webhooks/page"), "WebhooksPage"),
});

const volumesRoute = createRoute({
  getParentRoute: () => shellRoute,
  path: "/volumes",
  component: lazyPage(() => import("./pages/volumes"), "VolumesPage"),
});

const usageRoute = createRoute({
  getParentRoute: () => shellRoute,
  path: "/usage",
  component: lazyPage(() => import("./pages/usage/page"), "UsagePage"),
  validateSearch: (search: Record<string, unknown>): { time?: string; by?: string; project?: string } =>
    Object.fromEntries(
      (["time", "by", "project"] as const).flatMap((key) => (text(search[key]) ? [[key, String(search[key])]] : [])),
    ),
});

const auditRoute = createRoute({
  getParentRoute: () => shellRoute,
  path: "/audit",
  component: lazyPage(() => import("./pages/audit"), "AuditPage"),
  validateSearch: (search: Record<string, unknown>) =>
    Object.fromEntries(
      (["user", "action", "object", "project", "outcome"] as const).flatMap((key) =>
        text(search[key]) ? [[key, String(search[key])]] : [],
      ),
    ) as Partial<Record<"user" | "action" | "object" | "project" | "outcome", string>>,
});

const settingsRoute = createRoute({
  getParentRoute: () => shellRoute,
  path: "/settings",
  component: lazyPage(() => import("./pages/settings"), "SettingsPage"),
});

// For all other paths, so that the error is shown inside the shell.
const notFoundRoute = createRoute({ getParentRoute: () => shellRoute, path: "$", component: NotFound });

const routeTree = rootRoute.addChildren([
  loginRoute,
  providerReturnRoute,
  shellRoute.addChildren([
    indexRoute,
    jobsRoute,
    jobRoute.addChildren(jobTabs),
    studiesRoute,
    newStudyRoute,
    studyRoute.addChildren(studyTabs),
    modelsRoute,
    modelRoute.addChildren(modelTabs),
    endpointsRoute,
    endpointRoute.addChildren(endpointTabs),
    batchRoute,
    submitRoute,
    compareRoute,
    queueRoute,
    simulationsRoute,
    clusterRoute,
    projectsRoute,
    projectRoute,
    usersRoute,
    tokensRoute,
    notificationsRoute,
    webhooksRoute,
    volumesRoute,
    usageRoute,
    auditRoute,
    settingsRoute,
    notFoundRoute,
  ]),
]);

export const router = createRouter({
  routeTree,
  defaultPreload: "intent",
  scrollRestoration: true,
  defaultErrorComponent: ({ error }) => (
    <div className="page-body">
      <Failure error={error} retry={() => window.location.reload()} />
    </div>
  ),
});

declare module "@tanstack/react-router" {
  interface Register {
    router: typeof router;
  }
}

function Root() {
  useTitle();
  return <Outlet />;
}
