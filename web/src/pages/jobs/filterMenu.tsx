import { Menu } from "@base-ui/react/menu";
import { Check, ChevronDown } from "lucide-react";
import { State } from "~/components/state";

interface FilterMenuProps {
  label: string;
  items: readonly string[];
  chosen: readonly string[];
  toggle: (item: string) => void;
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
