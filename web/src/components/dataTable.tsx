import type { LucideIcon } from "lucide-react";
import type { ReactNode } from "react";
import { Skeleton, Empty, Failure } from "./parts";

interface Column<T> {
  head: ReactNode;
  cell: (row: T) => ReactNode;
  isRight?: boolean;
}

interface DataTableProps<T> {
  query: { data: readonly T[] | undefined; error: unknown; isPending: boolean; refetch: () => unknown };
  rowKey: (row: T) => string;
  columns: readonly Column<T>[];
  empty: { icon: LucideIcon; title: string; description: ReactNode };
  label: string;
}

/** A short list with its loading, error and empty states. */
export function DataTable<T>({ query, rowKey, columns, empty, label }: DataTableProps<T>) {
  if (query.isPending) {
    return (
      <section className="card">
        <div className="body">
          <Skeleton rows={4} height={22} />
        </div>
      </section>
    );
  }
  if (query.data === undefined) return <Failure error={query.error} retry={() => void query.refetch()} />;
  return (
    <section className="card" aria-label={label}>
      {query.data.length === 0 ? (
        <Empty icon={empty.icon} title={empty.title}>
          <p>{empty.description}</p>
        </Empty>
      ) : (
        <div className="table-box">
          <table className="table">
            <thead>
              <tr>
                {columns.map((column, i) => (
                  <th key={i} className={column.isRight ? "right" : ""}>
                    {column.head}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {query.data.map((row) => (
                <tr key={rowKey(row)}>
                  {columns.map((column, i) => (
                    <td key={i} className={column.isRight ? "right num" : ""}>
                      {column.cell(row)}
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}
