import { getRouteApi, Link } from "@tanstack/react-router";
import { Package, ShieldCheck } from "lucide-react";
import { type ModelFilters, modelKeys, readModels, STAGES } from "~/api/models";
import type { Model } from "~/api/types";
import { PagedList, useFilteredPages } from "~/components/pagedList";
import { PageHead } from "~/components/parts";
import { SearchBox } from "~/components/forms/searchBox";
import { State } from "~/components/state";
import { Ago } from "~/components/time";
import { splitList, toggled } from "~/lib/filters";
import { pluralize } from "~/lib/format";
import { ClearFilters, FilterMenu, ProjectFilter } from "~/pages/jobs/filterMenu";
import { Aliases, MetricTags, StageTag } from "~/pages/model/parts";

const route = getRouteApi("/shell/models");
const LIVE_MS = 5_000;

/** All visible models by name, each with its newest version. */
export function ModelsPage() {
  const { query, filters, isFiltered, filter, clear } = useFilteredPages<
    ModelFilters,
    Awaited<ReturnType<typeof readModels>>
  >(route, modelKeys.all, readModels, LIVE_MS);
  return (
    <div className="page-body">
      <PageHead title="Models" />
      <div className="filters">
        <SearchBox label="Search models" hint="Search by name" value={filters.q ?? ""} set={(q) => filter({ q })} />
        <FilterMenu
          label="Stage"
          items={STAGES.filter((stage) => stage !== "none")}
          chosen={splitList(filters.stage)}
          toggle={(stage) => filter({ stage: toggled(filters.stage, stage) })}
        />
        <ProjectFilter chosen={filters.project} set={(project) => filter({ project })} />
        {isFiltered && <ClearFilters clear={clear} />}
      </div>
      <PagedList
        query={query}
        label="Models"
        rowClass="model-row"
        columns={["Name", "Newest version", "Metrics", "Stages and aliases", "Changed"]}
        row={(model) => <Row key={model.id} model={model} />}
        empty={{
          icon: Package,
          title: isFiltered ? "No matching models" : "No models yet",
          description: isFiltered
            ? "Change or clear the filters."
            : "Open a job that has written a model or a checkpoint, and press Register as model.",
        }}
      />
    </div>
  );
}

function Row({ model }: { model: Model }) {
  const { newest } = model;
  const params = { project: model.project, model: model.name };
  const stages = ["production", "staging", "archived"].flatMap((stage) => {
    const version = model.stages?.[stage];
    return version === undefined ? [] : [{ stage, version }];
  });
  const aliases = Object.entries(model.aliases ?? {});
  return (
    <div role="row" className="grid-row model-row">
      <div role="cell" className="c-name">
        <Link to="/models/$project/$model" params={params} className="job-name cut" title={model.name}>
          {model.name}
        </Link>
        {model.is_protected && <ShieldCheck size={14} className="tone-violet" aria-label="protected" />}
        <span className="dimmer small cut">{model.project}</span>
      </div>
      <div role="cell" className="row">
        {newest ? (
          <>
            <Link
              to="/models/$project/$model/versions/$version"
              params={{ ...params, version: String(newest.version) }}
              className="num strong nowrap"
            >
              v{newest.version}
            </Link>
            <State state={newest.state} />
            <span className="dimmer small nowrap">of {pluralize(model.versions ?? 0, "version")}</span>
          </>
        ) : (
          <span className="dimmer">none</span>
        )}
      </div>
      <div role="cell">
        <MetricTags metrics={newest?.metrics ?? {}} most={2} />
      </div>
      <div role="cell" className="row tags-cell">
        {stages.map(({ stage, version }) => (
          <StageTag key={stage} stage={stage} version={version} modelKey={params} />
        ))}
        <Aliases aliases={aliases} modelKey={params} most={3} />
        {stages.length + aliases.length === 0 && <span className="dimmer">none</span>}
      </div>
      <div role="cell" className="dim">
        <Ago at={model.updated_at} />
      </div>
    </div>
  );
}
