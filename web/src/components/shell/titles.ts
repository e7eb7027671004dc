/* What the browser calls a page, in its tabs, its history and its bookmarks. */

const NAME = "Trainmaster";
const PLACES: Readonly<Record<string, string>> = {
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
  volumes: "Volumes",
  settings: "Settings",
  login: "Log in",
};

/** What is known of a job or a study: its address holds only its id. */
export interface Known {
  name: string;
  state: string;
}

/** The parts of an address, as they were before they were made fit for one. */
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

/** The most particular first, for a tab shows only the beginning: `slow (running) · Logs · Jobs · Trainmaster`. */
export function titleOf(path: string, isFound: boolean, known?: Known): string {
  const [place = "", ...rest] = partsOf(path);
  const words = isFound ? [...wordsOf(place, rest, known), PLACES[place]] : ["No such page"];
  return [...words, NAME].filter(Boolean).join(" · ");
}

function wordsOf(place: string, rest: readonly string[], known: Known | undefined): (string | undefined)[] {
  const [first, second, ...more] = rest;
  switch (place) {
    case "jobs":
    case "studies":
      if (place === "studies" && first === "new") return ["New study"];
      return [known ? `${known.name} (${known.state})` : first, capital(second)];
    case "models":
      return more[0] === "versions" ? [second, more[1] && `Version ${more[1]}`] : [second, capital(more[0])];
    case "endpoints":
      return [second, capital(more[0])];
    default:
      return [first];
  }
}

const capital = (word: string | undefined): string | undefined => word && word.charAt(0).toUpperCase() + word.slice(1);

export interface Way {
  to: string;
  search?: { project: string };
  label: string;
}

const LISTS = ["jobs", "studies", "models", "endpoints", "batch-predictions", "queue"];

/** Where somebody may have wanted to go who came to an address that is none; the likeliest first. */
export function waysFrom(path: string): { project: string | undefined; ways: Way[] } {
  const [place, first, kind = "", name] = partsOf(path);
  const project = place === "projects" ? first : undefined;
  const way = (list: string): Way => ({
    to: `/${list}`,
    ...(project !== undefined && { search: { project } }),
    label: PLACES[list] ?? list,
  });
  if (project === undefined) return { project, ways: LISTS.map(way) };
  const ways = [...LISTS.filter((list) => list === kind), ...LISTS.filter((list) => list !== kind)].map(way);
  return {
    project,
    ways: [...thing(project, kind, name), ...ways, { to: inAddress("projects", project), label: "The project" }],
  };
}

function thing(project: string, kind: string, name: string | undefined): Way[] {
  if (name === undefined) return [];
  if (kind === "models" || kind === "endpoints") return [{ to: inAddress(kind, project, name), label: name }];
  return kind === "jobs" || kind === "studies" ? [{ to: inAddress(kind, name), label: name }] : [];
}

const inAddress = (...parts: string[]): string => `/${parts.map(encodeURIComponent).join("/")}`;
