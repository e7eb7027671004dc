import { Compass } from "lucide-react";
import type { ReactNode } from "react";
import { ApiError } from "~/api/client";
import { Skeleton, Empty, Failure } from "./parts";

/* Common parts of the detail pages of a job, a study, a model and an endpoint. */

interface QueryBoundaryProps<T> {
  query: { data: T | undefined; error: unknown; isPending: boolean; refetch: () => unknown };
  /** The noun: "job". */
  kind: string;
  /** A link to the list. */
  listLink: ReactNode;
  children: (data: T) => ReactNode;
}

/** Renders the data of a query, its loading state, or its error. */
export function QueryBoundary<T>({ query, kind, listLink, children }: QueryBoundaryProps<T>) {
  if (query.data !== undefined) return children(query.data);
  if (query.isPending) {
    return (
      <div className="page-body">
        <Skeleton rows={2} height={26} />
        <Skeleton rows={8} />
      </div>
    );
  }
  return query.error instanceof ApiError && query.error.status === 404 ? (
    <Empty icon={Compass} title={`${kind.charAt(0).toUpperCase()}${kind.slice(1)} not found`}>
      <p>It was deleted, or you are not a member of its project.</p>
      {listLink}
    </Empty>
  ) : (
    <div className="page-body">
      <Failure error={query.error} retry={() => void query.refetch()} />
    </div>
  );
}

interface DetailPageProps {
  kind: string;
  /** Links to its list and project. */
  crumbs: ReactNode;
  title: string;
  /** Next to the title: state, user, age. */
  about: ReactNode;
  actions: ReactNode;
  /** Links with {@link TAB}. */
  tabs: ReactNode;
  children: ReactNode;
}

/** A header with tabs, and the selected tab. */
export function DetailPage({ kind, crumbs, title, about, actions, tabs, children }: DetailPageProps) {
  return (
    <div className="job">
      <header className="job-head">
        <nav aria-label="Breadcrumb" className="crumbs">
          {crumbs}
        </nav>
        <div className="page-head">
          <div className="grow row wrapping">
            <h1>{title}</h1>
            {about}
          </div>
          <div className="row wrapping">{actions}</div>
        </div>
        <nav aria-label={`Sections of the ${kind}`} className="tabs">
          {tabs}
        </nav>
      </header>
      <div className="job-tab">{children}</div>
    </div>
  );
}

/** Properties of a tab's link. */
export const TAB = {
  className: "tab",
  activeOptions: { exact: true, includeSearch: false },
  activeProps: { className: "active", "aria-current": "page" },
} as const;
