import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { ChevronRight, Plus, Rows3 } from "lucide-react";
import { useState } from "react";
import { api, unwrap } from "~/api/client";
import { endpointKeys } from "~/api/endpoints";
import type { Job } from "~/api/types";
import { PagedList, usePages } from "~/components/pagedList";
import { PageHead } from "~/components/parts";
import { State } from "~/components/state";
import { Ago, RunTime } from "~/components/time";
import { modelFromLabels } from "./batchRequest";
import { withoutExitPrefix, formatGang } from "~/lib/format";
import { FilterChip } from "~/pages/jobs/filterMenu";
import { ModelRef } from "~/pages/model/parts";
import { BatchDialog } from "./create";

const route = getRouteApi("/shell/batch-predictions");
const PAGE = 50;
const LIVE_MS = 3_000;
// Every batch prediction's job has this label.
const LABEL = "batch-prediction";

/** The jobs of batch predictions, newest first. */
export function BatchPage() {
  const { project, model } = route.useSearch();
  const navigate = useNavigate({ from: "/batch-predictions" });
  const [isOpen, setOpen] = useState(false);
  const query = usePages(
    [...endpointKeys.batches, project ?? ""],
    (cursor, signal) => {
      const of = {
        label: [LABEL],
        limit: PAGE,
        ...(cursor ? { cursor } : {}),
        ...(project ? { project: [project] } : {}),
      };
      return unwrap(api.GET("/api/v1/jobs", { params: { query: of }, signal }));
    },
    LIVE_MS,
  );
  const close = () => {
    setOpen(false);
    if (model) void navigate({ search: project ? { project } : {}, replace: true });
  };
  return (
    <div className="page-body">
      <nav aria-label="Where you are" className="crumbs">
        <Link to="/endpoints">Endpoints</Link>
        <ChevronRight size={13} aria-hidden="true" />
        <span>Batch predictions</span>
      </nav>
      <PageHead title="Batch predictions" about="Predictions for all rows of input files, run as jobs.">
        <button type="button" className="button primary" onClick={() => setOpen(true)}>
          <Plus size={15} aria-hidden="true" /> New batch prediction
        </button>
      </PageHead>
      {project && (
        <div className="filters">
          <FilterChip remove={() => void navigate({ search: {}, replace: true })}>project: {project}</FilterChip>
        </div>
      )}
      <PagedList
        query={query}
        label="Batch predictions"
        rowClass="batch-row"
        columns={["Name", "State", "Model", "Status", "Ran", "Age"]}
        row={(job) => <Row key={job.id} job={job} />}
        empty={{
          icon: Rows3,
          title: project ? `No batch predictions in ${project}` : "No batch predictions yet",
          description:
            "Choose a registered model and a JSONL or CSV file; the job writes the predictions to its output.",
        }}
      />
      <BatchDialog project={project ?? "default"} model={model} isOpen={isOpen || model !== undefined} close={close} />
    </div>
  );
}

function Row({ job }: { job: Job }) {
  const status = job.exit?.sentence ? withoutExitPrefix(job.exit.sentence) : (job.wait_reason?.sentence ?? "");
  const model = modelFromLabels(job.labels);
  return (
    <div role="row" className="grid-row batch-row">
      <div role="cell" className="c-name">
        <Link to="/jobs/$job" params={{ job: job.id }} className="job-name cut">
          {job.name}
        </Link>
        <span className="dimmer small cut">{job.project}</span>
      </div>
      <div role="cell">
        <State state={job.state} pill />
      </div>
      <div role="cell" className="cut">
        {model ? <ModelRef project={job.project} name={model} /> : <span className="dimmer">by path</span>}
      </div>
      <div role="cell" className="dim cut" title={status}>
        {job.state === "succeeded" ? (
          <Link to="/jobs/$job/files" params={{ job: job.id }} aria-label={`results of ${job.name}`}>
            results
          </Link>
        ) : (
          status || (job.state === "running" && <span className="num">{formatGang(job.roles ?? {})}</span>)
        )}
      </div>
      <div role="cell" className="dim">
        <RunTime seconds={job.ran_s ?? 0} since={job.running_since} />
      </div>
      <div role="cell" className="dim">
        <Ago at={job.created_at} />
      </div>
    </div>
  );
}
