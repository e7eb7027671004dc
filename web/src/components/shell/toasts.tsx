import { CircleAlert, CircleCheck, X } from "lucide-react";
import { useSyncExternalStore } from "react";

/* Short notifications. They disappear by themselves, errors later than others. */

interface Toast {
  id: number;
  text: string;
  kind: "good" | "bad";
}

let shown: readonly Toast[] = [];
let next = 1;
const listeners = new Set<() => void>();

function set(toasts: readonly Toast[]): void {
  shown = toasts;
  for (const listener of listeners) listener();
}

export function toast(text: string, kind: "good" | "bad" = "good"): void {
  const id = next;
  next += 1;
  set([...shown.slice(-3), { id, text, kind }]);
  setTimeout(() => dismiss(id), kind === "bad" ? 12_000 : 4_000);
}

function dismiss(id: number): void {
  set(shown.filter((each) => each.id !== id));
}

export function Toasts() {
  const toasts = useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => shown,
  );
  return (
    <div className="toasts" role="status" aria-live="polite">
      {toasts.map((each) => (
        <div key={each.id} className="toast">
          <span className={`tone-${each.kind === "bad" ? "red" : "green"}`}>
            {each.kind === "bad" ? (
              <CircleAlert size={16} aria-hidden="true" />
            ) : (
              <CircleCheck size={16} aria-hidden="true" />
            )}
          </span>
          <span className="grow wrap">{each.text}</span>
          <button type="button" className="button quiet icon small" aria-label="Close" onClick={() => dismiss(each.id)}>
            <X size={14} aria-hidden="true" />
          </button>
        </div>
      ))}
    </div>
  );
}
