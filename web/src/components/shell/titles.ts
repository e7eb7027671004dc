/* Titles of pages in the browser's tabs, history and bookmarks. */

const NAME = "Trainmaster";
const SECTION_TITLES: Readonly<Record<string, string>> = {
  jobs: "Jobs",
  studies: "Studies",
  models: "Models",
  endpoints: "Endpoints",
  "batch-predictions": "Batch predictions",
  submit: "Submit a job",
  compare: "Compare jobs",
  queue: "Queue",
  simulations: "Simulations",
  cluster: "Cluster",
  projects: "Projects",
  users: "Users",
  tokens: "Tokens",
  notifications: "Notifications",
  webhooks: "Webhooks",
  volumes: "Volumes",
  usage: "Usage",
  audit: "Audit log",
  settings: "Settings",
  login: "Log in",
};

/** Name and state of a job or a study: the address holds only its id. */
export interface Known {
  name: string;
  state: string;
}

/** Segments of a path, decoded. */
export function partsOf(path: string): string[] {
  return path
    .split("/")
    .filter(Boolean)
    .map((part) => {
      try {
        return decodeURIComponent(part);
      } catch {
        return part;
      }
    });
}

/** The most specific part first, since a tab shows only the beginning: `slow (running) · Logs · Jobs · Trainmaster`. */
export function titleOf(path: string, isFound: boolean, known?: Known): string {
  const [section = "", ...rest] = partsOf(path);
  const parts = isFound ? [...titleParts(section, rest, known), SECTION_TITLES[section]] : ["Page not found"];
  return [...parts, NAME].filter(Boolean).join(" · ");
}

function titleParts(section: string, rest: readonly string[], known: Known | undefined): (string | undefined)[] {
  const [first, second, ...more] = rest;
  switch (section) {
    case "jobs":
    case "studies":
      if (section === "studies" && first === "new") return ["New study"];
      return [known ? `${known.name} (${known.state})` : first, capitalized(second)];
    case "models":
      return more[0] === "versions" ? [second, more[1] && `Version ${more[1]}`] : [second, capitalized(more[0])];
    case "endpoints":
      return [second, capitalized(more[0])];
    default:
      return [first];
  }
}

const capitalized = (word: string | undefined): string | undefined =>
  word && word.charAt(0).toUpperCase() + word.slice(1);

export interface LinkSuggestion {
  to: string;
  search?: { project: string };
  label: string;
}

const LISTS = ["jobs", "studies", "models", "endpoints", "batch-predictions", "queue"];

/** Links to suggest for an unknown address, the likeliest first. */
export function suggestLinks(path: string): { project: string | undefined; links: LinkSuggestion[] } {
  const [section, first, kind = "", name] = partsOf(path);
  const project = section === "projects" ? first : undefined;
  const linkTo = (list: string): LinkSuggestion => ({
    to: `/${list}`,
    ...(project !== undefined && { search: { project } }),
    label: SECTION_TITLES[list] ?? list,
  });
  if (project === undefined) return { project, links: LISTS.map(linkTo) };
  const links = [...LISTS.filter((list) => list === kind), ...LISTS.filter((list) => list !== kind)].map(linkTo);
  return {
    project,
    links: [...detailLink(project, kind, name), ...links, { to: pathOf("projects", project), label: "Project" }],
  };
}

function detailLink(project: string, kind: string, name: string | undefined): LinkSuggestion[] {
  if (name === undefined) return [];
  if (kind === "models" || kind === "endpoints") return [{ to: pathOf(kind, project, name), label: name }];
  return kind === "jobs" || kind === "studies" ? [{ to: pathOf(kind, name), label: name }] : [];
}

const pathOf = (...parts: string[]): string => `/${parts.map(encodeURIComponent).join("/")}`;
