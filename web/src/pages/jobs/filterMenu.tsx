import { Menu } from "@base-ui/react/menu";
import { useQuery } from "@tanstack/react-query";
import { Check, ChevronDown, FilterX } from "lucide-react";
import type { ReactNode } from "react";
import { projectsQuery } from "~/api/queries";
import { State } from "~/components/state";
import { splitList, toggled } from "~/lib/filters";

interface FilterMenuProps {
  label: string;
  items: readonly string[];
  chosen: readonly string[];
  toggle: (item: string) => void;
}

/** An active filter without a menu, with a button to remove it. */
export function FilterChip({ children, remove }: { children: ReactNode; remove: () => void }) {
  return (
    <button type="button" className="button small" onClick={remove}>
      <span className="cut">{children}</span> <span aria-hidden="true">×</span>
      <span className="only-read">remove this filter</span>
    </button>
  );
}

/** Filter by project, if there are several. */
export function ProjectFilter({
  chosen,
  set,
}: {
  chosen: string | undefined;
  set: (projects: string | undefined) => void;
}) {
  const { data } = useQuery(projectsQuery);
  const names = (data ?? []).map((project) => project.name);
  if (names.length < 2 && chosen === undefined) return null;
  return (
    <FilterMenu
      label="Project"
      items={names}
      chosen={splitList(chosen)}
      toggle={(name) => set(toggled(chosen, name))}
    />
  );
}

export function ClearFilters({ clear }: { clear: () => void }) {
  return (
    <button type="button" className="button quiet small" onClick={clear}>
      <FilterX size={14} aria-hidden="true" /> Clear
    </button>
  );
}

/** Any of several values. */
export function FilterMenu({ label, items, chosen, toggle }: FilterMenuProps) {
  const [first] = chosen;
  return (
    <Menu.Root>
      <Menu.Trigger className={`button filter${first ? " on" : ""}`}>
        {label}
        {first && <span className="dim">: {chosen.length > 1 ? chosen.length : first}</span>}
        <ChevronDown size={14} aria-hidden="true" />
      </Menu.Trigger>
      <Menu.Portal>
        <Menu.Positioner sideOffset={5} align="start" className="layer">
          <Menu.Popup className="menu">
            {items.map((item) => (
              <Menu.CheckboxItem
                key={item}
                className="menu-item"
                checked={chosen.includes(item)}
                onCheckedChange={() => toggle(item)}
                closeOnClick={false}
              >
                <span className="grow">{label === "State" ? <State state={item} /> : item}</span>
                <Menu.CheckboxItemIndicator>
                  <Check size={14} aria-hidden="true" />
                </Menu.CheckboxItemIndicator>
              </Menu.CheckboxItem>
            ))}
          </Menu.Popup>
        </Menu.Positioner>
      </Menu.Portal>
    </Menu.Root>
  );
}
