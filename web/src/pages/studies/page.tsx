import { getRouteApi, Link } from "@tanstack/react-router";
import { FlaskConical, Plus } from "lucide-react";
import { readStudies, studyKeys, type StudyFilters } from "~/api/studies";
import type { Study } from "~/api/types";
import { PagedList, useFilteredPages } from "~/components/pagedList";
import { PageHead } from "~/components/parts";
import { SearchBox } from "~/components/forms/searchBox";
import { State } from "~/components/state";
import { Ago } from "~/components/time";
import { splitList, toggled } from "~/lib/filters";
import { pluralize, number } from "~/lib/format";
import { ClearFilters, FilterChip, FilterMenu, ProjectFilter } from "~/pages/jobs/filterMenu";

const route = getRouteApi("/shell/studies");
const STATES = ["running", "paused", "stopping", "succeeded", "failed", "cancelled"];
const LIVE_MS = 2_000;

/** All visible studies, newest first. */
export function StudiesPage() {
  const { query, filters, isFiltered, filter, clear } = useFilteredPages<
    StudyFilters,
    Awaited<ReturnType<typeof readStudies>>
  >(route, studyKeys.all, readStudies, LIVE_MS);

  return (
    <div className="page-body">
      <PageHead title="Studies">
        <Link to="/studies/new" className="button primary">
          <Plus size={15} aria-hidden="true" /> Create a study
        </Link>
      </PageHead>
      <div className="filters">
        <SearchBox
          label="Search studies"
          hint="Search by name or id"
          value={filters.q ?? ""}
          set={(q) => filter({ q })}
        />
        <FilterMenu
          label="State"
          items={STATES}
          chosen={splitList(filters.state)}
          toggle={(state) => filter({ state: toggled(filters.state, state) })}
        />
        <ProjectFilter chosen={filters.project} set={(project) => filter({ project })} />
        {splitList(filters.user).map((user) => (
          <FilterChip key={user} remove={() => filter({ user: toggled(filters.user, user) })}>
            user: {user}
          </FilterChip>
        ))}
        {isFiltered && <ClearFilters clear={clear} />}
      </div>
      <PagedList
        query={query}
        label="Studies"
        rowClass="study-row"
        columns={["Name", "State", "Trials", "Best", "Created"]}
        row={(study) => <Row key={study.id} study={study} byUser={(user) => filter({ user })} />}
        empty={{
          icon: FlaskConical,
          title: isFiltered ? "No matching studies" : "No studies yet",
          description: isFiltered
            ? "Change or clear the filters."
            : "A study searches parameters: it runs many jobs of one template and finds the best.",
        }}
      />
    </div>
  );
}

function Row({ study, byUser }: { study: Study; byUser: (user: string) => void }) {
  const { best } = study;
  const [metric] = study.metrics ?? [];
  return (
    <div role="row" className="grid-row study-row">
      <div role="cell" className="c-name">
        <Link to="/studies/$study" params={{ study: study.id }} className="job-name cut" title={study.name}>
          {study.name}
        </Link>
        <span className="dimmer small cut">{study.project}</span>
      </div>
      <div role="cell">
        <State state={study.state} pill />
      </div>
      <div role="cell">
        <StudyProgress study={study} />
      </div>
      <div role="cell" className="dim cut">
        {best && (study.metrics ?? []).length > 1 && study.front_size != null ? (
          <Link to="/studies/$study" params={{ study: study.id }}>
            {pluralize(study.front_size, "trial")} on the Pareto front
          </Link>
        ) : best && metric ? (
          <span title={formatParameters(best.parameters)}>
            <Link
              to="/studies/$study/trials"
              params={{ study: study.id }}
              search={{ trial: best.number }}
              className="strong num"
            >
              {metric} {number(best.result?.[metric])}
              <span className="only-read">, trial {best.number}</span>
            </Link>{" "}
            <span className="dimmer">{formatParameters(best.parameters)}</span>
          </span>
        ) : study.reason || study.note ? (
          <span className="two-lines" title={study.reason || study.note}>
            {study.reason || study.note}
          </span>
        ) : (
          <span className="dimmer">none yet</span>
        )}
      </div>
      <div role="cell" className="c-age dim">
        <Ago at={study.created_at} />
        <button
          type="button"
          className="tag cut"
          title={`Only studies of ${study.user}`}
          onClick={() => byUser(study.user)}
        >
          {study.user}
        </button>
      </div>
    </div>
  );
}

/** Numbers of trials by state, each a link to these trials. */
export function StudyProgress({ study }: { study: Study }) {
  const countOf = (state: string) => study.trials?.[state] ?? 0;
  const total = Object.values(study.trials ?? {}).reduce((sum, count) => sum + count, 0);
  const over = total - countOf("running");
  const waiting = study.waiting ?? 0;
  const running = Math.max(0, countOf("running") - waiting);
  const whole = Math.max(study.budget_trials ?? total, total, 1);
  const parts = [
    ["green", countOf("succeeded")],
    ["grey", countOf("stopped") + countOf("cancelled")],
    ["red", countOf("failed")],
    ["cyan", running],
    ["amber", waiting],
  ] as const;
  const more = (
    [
      ["running", running, "running,starting,paused"],
      ["waiting", waiting, "queued"],
      ["stopped early", countOf("stopped"), "stopped"],
      ["failed", countOf("failed"), "failed"],
      ["cancelled", countOf("cancelled"), "cancelled"],
    ] as const
  ).filter(([, count]) => count > 0);
  const trials = { to: "/studies/$study/trials", params: { study: study.id } } as const;
  return (
    <span className="study-progress">
      <span className="num dim">
        <Link {...trials}>
          {over.toLocaleString()} of {study.budget_trials ? pluralize(study.budget_trials, "trial") : "any number"}
        </Link>
        {more.map(([label, count, state], i) => (
          <span key={label} className="dimmer">
            {i === 0 ? " · " : ", "}
            <Link {...trials} search={{ state }}>
              {count.toLocaleString()} {label}
            </Link>
          </span>
        ))}
      </span>
      <span className="meter" aria-hidden="true">
        {parts.map(([tone, count]) => (
          <span key={tone} className={`fill-${tone}`} style={{ width: `${(100 * count) / whole}%` }} />
        ))}
      </span>
    </span>
  );
}

export const formatParameters = (parameters: Record<string, unknown>): string =>
  Object.entries(parameters)
    .map(([name, value]) => `${name}=${number(value)}`)
    .join(" ");
