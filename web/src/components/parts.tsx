import { CircleAlert, Copy, type LucideIcon, RotateCw, TriangleAlert } from "lucide-react";
import { Fragment, type ReactNode, useId, useState } from "react";
import { toast } from "./shell/toasts";

/* Small components used by every page. */

/** A sentence of the API, with its `commands` as code. */
export function Sentence({ text }: { text: string }) {
  return text.split("`").map((part, i) => {
    const key = `${i}${part}`;
    return i % 2 === 1 ? <code key={key}>{part}</code> : <Fragment key={key}>{part}</Fragment>;
  });
}

export function Empty({ icon: Icon, title, children }: { icon: LucideIcon; title: string; children?: ReactNode }) {
  return (
    <div className="empty">
      <Icon size={28} strokeWidth={1.5} aria-hidden="true" />
      <h2>{title}</h2>
      {children}
    </div>
  );
}

/** An error in the API's own words, with a retry button. */
export function Failure({ error, retry }: { error: unknown; retry?: (() => void) | undefined }) {
  const text = error instanceof Error ? error.message : String(error);
  return (
    <div className="note bad" role="alert">
      <CircleAlert size={16} aria-hidden="true" />
      <div className="grow">
        <Sentence text={text} />
      </div>
      {retry && (
        <button type="button" className="button small" onClick={retry}>
          <RotateCw size={13} aria-hidden="true" /> Try again
        </button>
      )}
    </div>
  );
}

/** What is probably a mistake, in the API's own words. */
export function Warnings({ warnings }: { warnings: readonly string[] }) {
  if (warnings.length === 0) return null;
  return (
    <div className="note warn" role="status">
      <TriangleAlert size={16} aria-hidden="true" />
      <ul className="stack tight">
        {warnings.map((warning) => (
          <li key={warning}>
            <Sentence text={warning} />
          </li>
        ))}
      </ul>
    </div>
  );
}

/** Grey placeholders as tall as the content, so that the layout does not shift. */
export function Skeleton({ rows = 3, height = 18 }: { rows?: number; height?: number }) {
  return (
    <div className="stack" aria-busy="true">
      <span className="only-read">Loading</span>
      {Array.from({ length: rows }, (_, i) => (
        <span key={i} className="skeleton" style={{ height, width: `${92 - ((i * 17) % 40)}%` }} />
      ))}
    </div>
  );
}

interface FieldProps {
  label: string;
  hint?: ReactNode;
  error?: string | undefined;
  children: (props: { id: string; "aria-describedby"?: string; "aria-invalid"?: true }) => ReactNode;
}

/** A labelled control; its error is announced to screen readers, too. */
export function Field({ label, hint, error, children }: FieldProps) {
  const id = useId();
  const about = `${id}-about`;
  const described = error
    ? ({ "aria-describedby": about, "aria-invalid": true } as const)
    : hint
      ? { "aria-describedby": about }
      : {};
  return (
    <div className="field">
      <label htmlFor={id}>{label}</label>
      {children({ id, ...described })}
      {error ? (
        <span id={about} className="wrong">
          {error}
        </span>
      ) : (
        hint && (
          <span id={about} className="hint">
            {hint}
          </span>
        )
      )}
    </div>
  );
}

export function CopyButton({ text, label = "Copy" }: { text: string; label?: string }) {
  const [isDone, setDone] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setDone(true);
      setTimeout(() => setDone(false), 1500);
    } catch {
      toast("The browser does not allow copying; select the text instead.", "bad");
    }
  };
  return (
    <button type="button" className="button quiet small" onClick={copy}>
      <Copy size={13} aria-hidden="true" /> {isDone ? "Copied" : label}
    </button>
  );
}

export function PageHead({ title, about, children }: { title: ReactNode; about?: ReactNode; children?: ReactNode }) {
  return (
    <header className="page-head">
      <div className="grow">
        <h1>{title}</h1>
        {about && <div className="dim">{about}</div>}
      </div>
      {children && <div className="row wrapping">{children}</div>}
    </header>
  );
}

export function Card({
  title,
  aside,
  children,
  flush = false,
}: {
  title: ReactNode;
  aside?: ReactNode;
  children: ReactNode;
  flush?: boolean;
}) {
  return (
    <section className="card">
      <header>
        <h2 className="grow">{title}</h2>
        {aside}
      </header>
      {flush ? children : <div className="body">{children}</div>}
    </section>
  );
}

/** A table that may be wider than the window: it can be scrolled by keyboard. */
export function TableBox({ label, children }: { label: string; children: ReactNode }) {
  return (
    <div className="table-box" role="region" tabIndex={0} aria-label={label}>
      {children}
    </div>
  );
}

/** Checkbox for a list of differences. */
export function ShowEqualToggle({ isAll, set }: { isAll: boolean; set: (isAll: boolean) => void }) {
  return (
    <label className="row small">
      <input type="checkbox" className="check" checked={isAll} onChange={(event) => set(event.target.checked)} /> Show
      equal
    </label>
  );
}
