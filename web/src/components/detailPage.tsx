import { Compass } from "lucide-react";
import type { ReactNode } from "react";
import { ApiError } from "~/api/client";
import { Bones, Empty, Failure } from "./parts";

/* What the pages of one thing have in common: a job, a study, a model, an endpoint. */

interface FoundProps<T> {
  query: { data: T | undefined; error: unknown; isPending: boolean; refetch: () => unknown };
  /** What it is called: "job". */
  kind: string;
  /** A link to all of its kind. */
  all: ReactNode;
  children: (thing: T) => ReactNode;
}

/** The page of a thing, once it is read; or that there is none. */
export function Found<T>({ query, kind, all, children }: FoundProps<T>) {
  if (query.data !== undefined) return children(query.data);
  if (query.isPending) {
    return (
      <div className="page-body">
        <Bones rows={2} height={26} />
        <Bones rows={8} />
      </div>
    );
  }
  return query.error instanceof ApiError && query.error.status === 404 ? (
    <Empty icon={Compass} title={`There is no such ${kind}`}>
      <p>It was deleted, or it is in a project that you are not a member of.</p>
      {all}
    </Empty>
  ) : (
    <div className="page-body">
      <Failure error={query.error} retry={() => void query.refetch()} />
    </div>
  );
}

interface ThingProps {
  kind: string;
  /** Links to where it belongs. */
  crumbs: ReactNode;
  title: string;
  /** Beside the title: its state, whose it is. */
  about: ReactNode;
  actions: ReactNode;
  /** Links with {@link TAB}. */
  tabs: ReactNode;
  children: ReactNode;
}

/** A head with tabs, and below it the chosen one. */
export function Thing({ kind, crumbs, title, about, actions, tabs, children }: ThingProps) {
  return (
    <div className="job">
      <header className="job-head">
        <nav aria-label="Where you are" className="crumbs">
          {crumbs}
        </nav>
        <div className="page-head">
          <div className="grow row wrapping">
            <h1>{title}</h1>
            {about}
          </div>
          <div className="row wrapping">{actions}</div>
        </div>
        <nav aria-label={`Of this ${kind}`} className="tabs">
          {tabs}
        </nav>
      </header>
      <div className="job-tab">{children}</div>
    </div>
  );
}

/** How the link of a tab looks. */
export const TAB = {
  className: "tab",
  activeOptions: { exact: true, includeSearch: false },
  activeProps: { className: "active", "aria-current": "page" },
} as const;
