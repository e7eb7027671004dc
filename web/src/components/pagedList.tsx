import { keepPreviousData, useInfiniteQuery } from "@tanstack/react-query";
import type { LucideIcon } from "lucide-react";
import { type ReactNode } from "react";
import { withChanges } from "~/lib/filters";
import { Skeleton, Empty, Failure } from "./parts";

const MANY = 4; // pages
const PAGE_SIZE = 50;

/** The pages of a list for {@link PagedList}, polled every `liveMs`, and more slowly once many pages were read. */
export function usePages<Page extends { next_cursor?: string | null }>(
  queryKey: readonly unknown[],
  read: (cursor: string | null, signal: AbortSignal) => Promise<Page>,
  liveMs: number,
) {
  return useInfiniteQuery({
    queryKey,
    queryFn: ({ pageParam, signal }) => read(pageParam || null, signal),
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor ?? undefined,
    refetchInterval: (now) => ((now.state.data?.pages.length ?? 1) > MANY ? 5 * liveMs : liveMs),
    // While the user types, the previous results stay visible.
    placeholderData: keepPreviousData,
  });
}

interface ListRoute<F> {
  useSearch: () => F;
  useNavigate: () => (to: { search: F; replace: boolean }) => unknown;
}

type ReadPage<F, Page> = (filters: F, cursor: string | null, limit: number, signal: AbortSignal) => Promise<Page>;

/** The pages of a list with the filters in its address, and functions that change these filters. */
export function useFilteredPages<F extends object, Page extends { next_cursor?: string | null }>(
  route: ListRoute<NoInfer<F>>,
  queryKey: readonly unknown[],
  read: ReadPage<F, Page>,
  liveMs: number,
) {
  const filters = route.useSearch();
  const navigate = route.useNavigate();
  const query = usePages([...queryKey, filters], (cursor, signal) => read(filters, cursor, PAGE_SIZE, signal), liveMs);
  const set = (search: F) => void navigate({ search, replace: true });
  return {
    query,
    filters,
    isFiltered: Object.keys(filters).length > 0,
    filter: (change: { [name in keyof F]?: F[name] | undefined }) => set(withChanges(filters, change)),
    clear: () => set({} as F),
  };
}

interface PagedListProps<T> {
  query: {
    data: { pages: readonly { items: readonly T[] }[] } | undefined;
    error: unknown;
    isPending: boolean;
    hasNextPage: boolean;
    isFetchingNextPage: boolean;
    refetch: () => unknown;
    fetchNextPage: () => unknown;
  };
  label: string;
  /** CSS class of every row, which sets the column widths. */
  rowClass: string;
  columns: readonly string[];
  /** A `div` of role `row`. */
  row: (item: T) => ReactNode;
  empty: { icon: LucideIcon; title: string; description: ReactNode };
}

/** A paged list with its loading, error and empty states. */
export function PagedList<T>({ query, label, rowClass, columns, row, empty }: PagedListProps<T>) {
  const items = query.data?.pages.flatMap((page) => page.items) ?? [];
  const failure = query.error !== null && <Failure error={query.error} retry={() => void query.refetch()} />;
  if (query.isPending) {
    return (
      <section className="card">
        <div className="body">
          <Skeleton rows={6} height={22} />
        </div>
      </section>
    );
  }
  if (items.length === 0) {
    return (
      failure || (
        <section className="card">
          <Empty icon={empty.icon} title={empty.title}>
            <p>{empty.description}</p>
          </Empty>
        </section>
      )
    );
  }
  return (
    <>
      {failure}
      <section className="card">
        <div role="table" aria-label={label}>
          <div role="rowgroup" className="grid-head">
            <div role="row" className={`grid-row ${rowClass}`}>
              {columns.map((column) => (
                <div key={column} role="columnheader">
                  {column}
                </div>
              ))}
            </div>
          </div>
          <div role="rowgroup">{items.map(row)}</div>
        </div>
        {query.hasNextPage && (
          <div className="body row">
            <button
              type="button"
              className="button"
              disabled={query.isFetchingNextPage}
              onClick={() => void query.fetchNextPage()}
            >
              Show more
            </button>
          </div>
        )}
      </section>
    </>
  );
}
