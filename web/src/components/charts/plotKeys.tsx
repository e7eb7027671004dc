import { type KeyboardEvent, useId, useState } from "react";

interface PlotKeysProps {
  /** Content of the chart. */
  label: string;
  /** Trials in the order of keyboard navigation. */
  order: readonly number[];
  describe: (trial: number) => string;
  show: (trial: number | null) => void;
  pick: (trial: number) => void;
}

const FAR = 10; // trials per page key

/**
 * Keyboard access to a chart's trials: a list over the canvas. Only the current trial is in the page, as there
 * may be thousands.
 */
export function PlotKeys({ label, order, describe, show, pick }: PlotKeysProps) {
  const id = useId();
  const [chosen, setChosen] = useState<number | null>(null);
  const known = chosen === null ? -1 : order.indexOf(chosen);
  const at = known === -1 ? 0 : known;
  const trial = order[at];
  if (trial === undefined) return null;
  const last = order.length - 1;
  const moveSelection = (event: KeyboardEvent) => {
    const to: Record<string, number> = {
      ArrowRight: at + 1,
      ArrowDown: at + 1,
      ArrowLeft: at - 1,
      ArrowUp: at - 1,
      PageDown: at + FAR,
      PageUp: at - FAR,
      Home: 0,
      End: last,
    };
    const next = to[event.key];
    if (event.key === "Enter" || event.key === " ") pick(trial);
    else if (next === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
    else {
      const number = order[Math.min(last, Math.max(0, next))] ?? trial;
      setChosen(number);
      show(number);
    }
    event.preventDefault();
  };
  return (
    <div
      className="plot-keys"
      role="listbox"
      tabIndex={0}
      aria-label={`${label}: arrow keys move between trials, Enter opens one`}
      aria-activedescendant={id}
      onKeyDown={moveSelection}
      onFocus={() => show(trial)}
      onBlur={() => show(null)}
    >
      <div
        id={id}
        role="option"
        aria-selected={true}
        aria-posinset={at + 1}
        aria-setsize={order.length}
        className="only-read"
      >
        Trial {trial}: {describe(trial).replaceAll("\n", ", ")}
      </div>
    </div>
  );
}
