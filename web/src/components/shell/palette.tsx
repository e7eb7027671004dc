import { Dialog } from "@base-ui/react/dialog";
import { useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { Plus } from "lucide-react";
import { type KeyboardEvent, type ReactNode, useEffect, useState, useSyncExternalStore } from "react";
import { api, unwrap } from "~/api/client";
import { setTheme } from "~/lib/browser/theme";
import { ADMIN, WORK } from "./shell";
import { State } from "~/components/state";

/* Search and commands: `/` or Ctrl-K from anywhere. */

let isOpen = false;
const listeners = new Set<() => void>();

function set(open: boolean): void {
  isOpen = open;
  for (const listener of listeners) listener();
}

export const openPalette = (): void => set(true);

interface Choice {
  key: string;
  label: ReactNode;
  searchText: string;
  act: () => void;
}

export function Palette() {
  const open = useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => isOpen,
  );
  useShortcuts();
  return (
    <Dialog.Root open={open} onOpenChange={set}>
      <Dialog.Portal>
        <Dialog.Backdrop className="backdrop" />
        <Dialog.Popup className="palette" aria-label="Search and commands">
          <PaletteContent />
        </Dialog.Popup>
      </Dialog.Portal>
    </Dialog.Root>
  );
}

function PaletteContent() {
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const { choices, isSearching } = useChoices(text);
  const chosen = Math.min(at, choices.length - 1);
  const run = (choice: Choice | undefined) => {
    if (!choice) return;
    set(false);
    choice.act();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "ArrowDown") setAt(Math.min(chosen + 1, choices.length - 1));
    else if (event.key === "ArrowUp") setAt(Math.max(chosen - 1, 0));
    else if (event.key === "Enter") run(choices[chosen]);
    else return;
    event.preventDefault();
  };
  return (
    <>
      <input
        autoFocus
        role="combobox"
        aria-expanded="true"
        aria-controls="palette-list"
        aria-activedescendant={choices[chosen] ? `palette-${choices[chosen].key}` : undefined}
        aria-label="Search jobs, pages and commands"
        placeholder="Search jobs, pages and commands"
        value={text}
        onChange={(event) => {
          setText(event.target.value);
          setAt(0);
        }}
        onKeyDown={onKeyDown}
      />
      <div id="palette-list" role="listbox" aria-label="Results">
        {choices.map((choice, i) => (
          <div
            key={choice.key}
            id={`palette-${choice.key}`}
            role="option"
            tabIndex={-1}
            aria-selected={i === chosen}
            className={`menu-item${i === chosen ? " active" : ""}`}
            onMouseMove={() => setAt(i)}
            onClick={() => run(choice)}
          >
            {choice.label}
          </div>
        ))}
      </div>
      {choices.length === 0 && <p className="empty">{isSearching ? "Searching …" : "No results."}</p>}
      <footer>
        <span>
          <span className="kbd">↑</span> <span className="kbd">↓</span> choose
        </span>
        <span>
          <span className="kbd">Enter</span> open
        </span>
        <span>
          <span className="kbd">g</span> <span className="kbd">j</span> jobs
        </span>
        <span>
          <span className="kbd">g</span> <span className="kbd">q</span> queue
        </span>
        <span>
          <span className="kbd">g</span> <span className="kbd">c</span> cluster
        </span>
        <span>
          <span className="kbd">n</span> new job
        </span>
      </footer>
    </>
  );
}

function useChoices(text: string): { choices: Choice[]; isSearching: boolean } {
  const navigate = useNavigate();
  const search = text.trim();
  const { data, isPlaceholderData, isFetching } = useQuery({
    queryKey: ["palette", search],
    queryFn: () => unwrap(api.GET("/api/v1/jobs", { params: { query: { search, limit: 8 } } })),
    staleTime: 5_000,
    placeholderData: (before) => before,
  });
  const go = (to: string) => () => void navigate({ to });
  const pages = [...WORK, ...ADMIN].map(({ to, label, icon: Icon }) => ({
    key: to.slice(1),
    label: (
      <>
        <Icon size={15} aria-hidden="true" /> {label}
      </>
    ),
    searchText: label,
    act: go(to),
  }));
  const submit = {
    key: "submit",
    label: (
      <>
        <Plus size={15} aria-hidden="true" /> Submit a job
      </>
    ),
    searchText: "submit a new job",
    act: go("/submit"),
  };
  const themes = (["light", "dark", "system"] as const).map((theme) => ({
    key: `theme-${theme}`,
    label: `Theme: ${theme}`,
    searchText: `theme ${theme}`,
    act: () => setTheme(theme),
  }));
  const needle = search.toLowerCase();
  const commands = [submit, ...pages, ...(needle ? themes : [])].filter((choice) =>
    choice.searchText.toLowerCase().includes(needle),
  );
  // Until the answer to this search is there, only jobs of the last answer that match by name: Enter opens no other.
  const found = (data?.items ?? []).filter((job) => !isPlaceholderData || job.name.toLowerCase().includes(needle));
  const jobs = found.map((job) => ({
    key: job.id,
    label: (
      <>
        <State state={job.state} /> <span className="grow cut">{job.name}</span>{" "}
        <span className="dimmer cut">{job.project}</span>
      </>
    ),
    searchText: job.name,
    act: () => void navigate({ to: "/jobs/$job", params: { job: job.id } }),
  }));
  // Commands first: an answer that arrives after a key does not move the selection to another entry.
  return { choices: [...commands, ...(needle ? jobs : jobs.slice(0, 5))], isSearching: isFetching };
}

/** `/` and Ctrl-K open the palette, `n` a new job, `g` and a letter a page; never while typing. */
function useShortcuts(): void {
  const navigate = useNavigate();
  useEffect(() => {
    let isGoing = false;
    const onKey = (event: globalThis.KeyboardEvent) => {
      const typed =
        event.target instanceof HTMLElement && event.target.closest("input, textarea, select, [contenteditable=true]");
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        set(true);
      } else if (typed || isOpen || event.ctrlKey || event.metaKey || event.altKey) {
        isGoing = false;
      } else if (event.key === "/") {
        event.preventDefault();
        set(true);
      } else if (isGoing && event.key in SHORTCUTS) {
        isGoing = false;
        void navigate({ to: SHORTCUTS[event.key] as string });
      } else if (event.key === "n") {
        void navigate({ to: "/submit" });
      } else {
        isGoing = event.key === "g";
      }
    };
    window.addEventListener("keydown", onKey);
    return () => window.removeEventListener("keydown", onKey);
  }, [navigate]);
}

const SHORTCUTS: Record<string, string> = {
  j: "/jobs",
  y: "/studies",
  m: "/models",
  e: "/endpoints",
  q: "/queue",
  c: "/cluster",
  p: "/projects",
  v: "/volumes",
  t: "/tokens",
  s: "/settings",
};
