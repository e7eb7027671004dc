import { getRouteApi } from "@tanstack/react-router";
import { ScrollText } from "lucide-react";
import { api, unwrap } from "~/api/client";
import type { AuditEntry } from "~/api/types";
import { DataTable } from "~/components/dataTable";
import { SearchBox } from "~/components/forms/searchBox";
import { useFilteredPages } from "~/components/pagedList";
import { PageHead } from "~/components/parts";
import { LocalTime } from "~/components/time";
import { ClearFilters, FilterMenu, ProjectFilter } from "~/pages/jobs/filterMenu";

type AuditFilters = Partial<Record<"user" | "action" | "object" | "project" | "outcome", string>>;
type Outcome = AuditEntry["outcome"];

const route = getRouteApi("/shell/audit");
const LIVE_MS = 30_000;
const OUTCOMES: Outcome[] = ["allowed", "refused"];

const readEntries = (filters: AuditFilters, cursor: string | null, limit: number, signal: AbortSignal) => {
  const { outcome, ...texts } = filters;
  const query = {
    limit,
    ...texts,
    ...(outcome ? { outcome: outcome as Outcome } : {}),
    ...(cursor ? { cursor } : {}),
  };
  return unwrap(api.GET("/api/v1/audit", { params: { query }, signal }));
};

/** Who did what, or was refused; for admins of the platform, and of projects. */
export function AuditPage() {
  const { query, filters, isFiltered, filter, clear } = useFilteredPages<
    AuditFilters,
    Awaited<ReturnType<typeof readEntries>>
  >(route, ["audit"], readEntries, LIVE_MS);
  return (
    <div className="page-body">
      <PageHead title="Audit log" about="Changes, downloads, refused requests and failed logins." />
      <div className="filters">
        <SearchBox label="User" hint="User" value={filters.user ?? ""} set={(user) => filter({ user })} />
        <SearchBox label="Action" hint="Action" value={filters.action ?? ""} set={(action) => filter({ action })} />
        <SearchBox label="Object" hint="Object" value={filters.object ?? ""} set={(object) => filter({ object })} />
        <FilterMenu
          label="Outcome"
          items={OUTCOMES}
          chosen={filters.outcome ? [filters.outcome] : []}
          toggle={(outcome) => filter({ outcome: outcome === filters.outcome ? undefined : outcome })}
        />
        <ProjectFilter chosen={filters.project} set={(project) => filter({ project })} />
        {isFiltered && <ClearFilters clear={clear} />}
      </div>
      <DataTable<AuditEntry>
        label="Audit log"
        query={{ ...query, data: query.data?.pages.flatMap((page) => page.items) }}
        rowKey={(entry) => String(entry.id)}
        empty={{ icon: ScrollText, title: "No entries", description: "Change or clear the filters." }}
        columns={[
          { head: "Time", cell: (entry) => <LocalTime at={entry.at} /> },
          { head: "User", cell: (entry) => entry.user || <span className="dim">anonymous</span> },
          { head: "Address", cell: (entry) => entry.address },
          { head: "Action", cell: (entry) => <Action entry={entry} /> },
          {
            head: "Object",
            cell: (entry) => <span className="wrap">{`${entry.object_kind} ${entry.object_id}`}</span>,
          },
          { head: "Project", cell: (entry) => entry.project },
          { head: "Outcome", cell: (entry) => <OutcomeOf entry={entry} /> },
        ]}
      />
      {query.hasNextPage && (
        <button
          type="button"
          className="button"
          disabled={query.isFetchingNextPage}
          onClick={() => void query.fetchNextPage()}
        >
          Show more
        </button>
      )}
    </div>
  );
}

function Action({ entry }: { entry: AuditEntry }) {
  const name = <span className="strong wrap">{entry.action}</span>;
  if (entry.repeats > 1)
    return (
      <>
        {name} {entry.repeats.toLocaleString()} times
      </>
    );
  if (entry.changes.length === 0) return name;
  return (
    <details>
      <summary className="nowrap">{name}</summary>
      <pre className="wrap">{JSON.stringify(entry.changes, null, 1)}</pre>
    </details>
  );
}

function OutcomeOf({ entry }: { entry: AuditEntry }) {
  const isRefused = entry.outcome === "refused";
  return (
    <span className={`state ${isRefused ? "tone-red" : "tone-green"}`}>
      {isRefused ? `refused: ${entry.code ?? entry.status}` : "allowed"}
    </span>
  );
}
