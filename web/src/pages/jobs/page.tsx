import { useQuery } from "@tanstack/react-query";
import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { FilterX, GitCompareArrows, ListPlus } from "lucide-react";
import { useCallback, useEffect, useMemo, useRef, useState } from "react";
import { studyQuery } from "~/api/studies";
import type { Job } from "~/api/types";
import { Skeleton, Empty, Failure, PageHead } from "~/components/parts";
import { SearchBox } from "~/components/forms/searchBox";
import { splitList, toggled } from "~/lib/filters";
import { isSort, type JobsSearch, readFilters, type Sort, SORTS } from "./filters";
import { JobActions } from "./actions";
import { ClearFilters, FilterChip, FilterMenu, ProjectFilter } from "./filterMenu";
import { useNewestJobs } from "./useNewestJobs";
import { useSortedJobs } from "./useSortedJobs";
import { JobTable } from "./table";

const route = getRouteApi("/shell/jobs");
const REMEMBERED = 50;
const SORT_LABELS: Record<Sort, string> = {
  newest: "Newest first",
  oldest: "Oldest first",
  name: "By name",
  priority: "By priority",
  state: "By state",
  started: "Last started first",
  gpus: "Most GPUs first",
  user: "By user",
};
const STATES = ["queued", "starting", "running", "paused", "cancelling", "succeeded", "failed", "cancelled", "expired"];

export function JobsPage() {
  const search = route.useSearch();
  const filters = useMemo(() => readFilters({ ...search }), [search]);
  const navigate = useNavigate({ from: "/jobs" });
  const [visible, setVisible] = useState({ from: 0, to: 30 });
  const [chosen, setChosen] = useState<ReadonlyMap<string, Job>>(new Map());
  const isSorted = isSort(filters.sort) && filters.sort !== "newest";
  const newest = useNewestJobs(filters, visible, !isSorted);
  const sorted = useSortedJobs(filters, visible, isSorted);
  const { jobs, isWhole, error, isPending, isPlaceholderData, refetch } = isSorted ? sorted : newest;
  const isFiltered = Object.keys(filters).some((name) => name !== "sort");

  const filter = useCallback(
    (change: Partial<Record<keyof JobsSearch, string | undefined>>) => {
      void navigate({ search: (before) => clean({ ...before, ...change }), replace: true });
    },
    [navigate],
  );
  const toggle = useCallback((job: Job) => {
    setChosen((before) => {
      const next = new Map(before);
      if (!next.delete(job.id)) next.set(job.id, job);
      return next;
    });
  }, []);
  const toggleAll = useCallback(() => {
    setChosen((before) =>
      jobs.every((job) => before.has(job.id)) ? new Map() : new Map(jobs.map((job) => [job.id, job])),
    );
  }, [jobs]);
  // The address remembers the selection, unless it would get too long for proxies.
  const isRestored = useRef(false);
  useEffect(() => {
    if (isRestored.current || jobs.length === 0) return;
    isRestored.current = true;
    const ids = new Set(splitList(search.chosen));
    if (ids.size > 0) setChosen(new Map(jobs.filter((job) => ids.has(job.id)).map((job) => [job.id, job])));
  }, [jobs, search.chosen]);
  useEffect(() => {
    if (!isRestored.current) return;
    const remembered = chosen.size > 0 && chosen.size <= REMEMBERED ? [...chosen.keys()].join(",") : undefined;
    if (remembered !== search.chosen) filter({ chosen: remembered });
  }, [chosen, search.chosen, filter]);
  // Their present state, not that at the time of the selection.
  const current = useMemo(() => {
    const byId = new Map(jobs.map((job) => [job.id, job]));
    return [...chosen.values()].map((job) => byId.get(job.id) ?? job);
  }, [jobs, chosen]);

  return (
    <div className="page-body fill">
      <PageHead title="Jobs">
        {chosen.size >= 2 && chosen.size <= 8 && (
          <Link to="/compare" search={{ jobs: [...chosen.keys()].join(",") }} className="button">
            <GitCompareArrows size={15} aria-hidden="true" /> Compare {chosen.size}
          </Link>
        )}
        {chosen.size > 0 && <JobActions jobs={current} done={() => setChosen(new Map())} />}
      </PageHead>
      <div className="filters">
        <SearchBox
          label="Search jobs"
          hint="Name, label or id"
          value={filters.q ?? ""}
          set={(q) => filter({ q: q || undefined })}
        />
        <FilterMenu
          label="State"
          items={STATES}
          chosen={splitList(filters.state)}
          toggle={(state) => filter({ state: toggled(filters.state, state) })}
        />
        <select
          className="input auto"
          aria-label="Sort"
          value={isSorted ? filters.sort : "newest"}
          onChange={(event) => filter({ sort: event.target.value === "newest" ? undefined : event.target.value })}
        >
          {SORTS.map((sort) => (
            <option key={sort} value={sort}>
              {SORT_LABELS[sort]}
            </option>
          ))}
        </select>
        <ProjectFilter chosen={filters.project} set={(project) => filter({ project })} />
        {splitList(filters.label).map((label) => (
          <FilterChip key={label} remove={() => filter({ label: toggled(filters.label, label) })}>
            {label}
          </FilterChip>
        ))}
        {splitList(filters.study).map((study) => (
          <FilterChip key={study} remove={() => filter({ study: toggled(filters.study, study) })}>
            study: <StudyName id={study} />
          </FilterChip>
        ))}
        {splitList(filters.user).map((user) => (
          <FilterChip key={user} remove={() => filter({ user: toggled(filters.user, user) })}>
            user: {user}
          </FilterChip>
        ))}
        {isFiltered && <ClearFilters clear={() => void navigate({ search: {}, replace: true })} />}
        <span className="grow" />
        <span className="dimmer num" role="status">
          {isPending
            ? ""
            : chosen.size > 0
              ? `${chosen.size} chosen`
              : `${jobs.length.toLocaleString()}${isWhole ? "" : "+"} jobs`}
        </span>
      </div>
      {error !== null && !isPending && <Failure error={error} retry={() => void refetch()} />}
      <div className="card job-card" aria-busy={isPlaceholderData}>
        {isPending ? (
          <div className="body">
            <Skeleton rows={14} height={22} />
          </div>
        ) : jobs.length > 0 ? (
          <JobTable
            jobs={jobs}
            chosen={chosen}
            toggle={toggle}
            toggleAll={toggleAll}
            setVisible={setVisible}
            filter={filter}
            filters={filters}
          />
        ) : isFiltered ? (
          <Empty icon={FilterX} title="No matching jobs">
            <p>Change or clear the filters.</p>
            <button type="button" className="button" onClick={() => void navigate({ search: {}, replace: true })}>
              Clear filters
            </button>
          </Empty>
        ) : (
          <Empty icon={ListPlus} title="No jobs yet">
            <p>
              Submit one here, or from your project's folder with{" "}
              <code>trainmaster run --workers 2 -- python train.py</code>.
            </p>
            <Link to="/submit" className="button primary">
              Submit a job
            </Link>
          </Empty>
        )}
      </div>
    </div>
  );
}

function clean(search: Partial<Record<keyof JobsSearch, string | undefined>>): JobsSearch {
  return Object.fromEntries(Object.entries(search).filter(([, value]) => value !== undefined)) as JobsSearch;
}

/** The study's name, once it is loaded: the address holds its id. */
function StudyName({ id }: { id: string }) {
  const { data } = useQuery({ ...studyQuery(id), refetchInterval: false });
  return <>{data?.name ?? id}</>;
}
