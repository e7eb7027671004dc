import { useQuery } from "@tanstack/react-query";
import { CircleCheck, Hourglass, LoaderCircle, Server } from "lucide-react";
import { forecastQuery, nodesQuery } from "~/api/queries";
import type { Forecast, ForecastOption, JobSpec } from "~/api/types";
import { Failure, Sentence } from "~/components/parts";
import { Placements } from "~/components/placements";
import { bytes, pluralize, withFullStop } from "~/lib/format";
import { free, gpuCount, infeasibleHeadline, isSchedulable } from "~/lib/capacity";
import { WhatIfDialog } from "~/pages/whatIf/panel";

interface PlacementProps {
  /** The canonical spec; null while it is invalid. */
  spec: object | null;
  /** Applies an alternative to the spec; without it alternatives are not offered. */
  apply?: (option: ForecastOption) => void;
}

/** Where the job would run now: the planner's forecast. */
export function PlacementPreview({ spec, apply }: PlacementProps) {
  const { data, error, isPlaceholderData, refetch } = useQuery(forecastQuery(spec));
  return (
    <section className="card submit-placement" aria-label="Placement" aria-busy={spec !== null && isPlaceholderData}>
      <div className="body stack tight">
        <div className="row top" role="status">
          <ForecastSummary spec={spec} found={data} isOld={isPlaceholderData} hasFailed={error !== null} />
          <span className="grow" />
          <FreeNow />
          <WhatIfDialog spec={spec as JobSpec | null} />
        </div>
        {spec !== null && error !== null && <Failure error={error} retry={() => void refetch()} />}
        {data?.cost && <p className={isPlaceholderData ? "dim" : ""}>Cost: {data.cost.sentence}</p>}
        {apply && spec !== null && data?.wait_reason && <Options options={data.options ?? []} apply={apply} />}
      </div>
    </section>
  );
}

interface VerdictProps {
  spec: object | null;
  found: Forecast | undefined;
  isOld: boolean;
  hasFailed: boolean;
}

function ForecastSummary({ spec, found, isOld, hasFailed }: VerdictProps) {
  if (spec === null || (hasFailed && found === undefined)) {
    return (
      <>
        <Server size={16} aria-hidden="true" className="dimmer lead" />
        <span className="dim">
          {spec === null ? "The placement appears here once the spec is valid." : "The placement is unknown."}
        </span>
      </>
    );
  }
  if (found === undefined) {
    return (
      <>
        <LoaderCircle size={16} className="spin dimmer lead" aria-hidden="true" />
        <span className="dim">Computing the placement…</span>
      </>
    );
  }
  if (found.wait_reason) {
    return (
      <>
        <Hourglass size={16} aria-hidden="true" className="tone-amber lead" />
        <span className={isOld ? "dim" : ""}>
          {found.wait_reason.is_infeasible ? (
            <b className="tone-red">{infeasibleHeadline(found.wait_reason)}.</b>
          ) : (
            <>
              <b className="tone-amber">It would wait</b>
              {found.queue_position ? ` at queue position ${found.queue_position.toLocaleString()}` : ""}.
              {found.start && found.start.code !== "now" ? ` ${withFullStop(found.start.sentence)}` : ""}
            </>
          )}{" "}
          <Sentence text={found.wait_reason.sentence} />
        </span>
      </>
    );
  }
  return (
    <>
      <CircleCheck size={16} aria-hidden="true" className="tone-green lead" />
      <span className={isOld ? "dim" : ""}>
        <b className="tone-green">It would start now</b> on <Placements placements={found.places ?? []} />
      </span>
    </>
  );
}

function Options({ options, apply }: { options: readonly ForecastOption[]; apply: (option: ForecastOption) => void }) {
  if (options.length === 0) return <p className="dim placement-options">No similar configuration could start now.</p>;
  return (
    <ul className="placement-options stack tight">
      {options.map((option) => (
        <li key={option.sentence} className="row">
          <button type="button" className="button small" onClick={() => apply(option)}>
            Use this
          </button>
          <span>{option.sentence}</span>
        </li>
      ))}
    </ul>
  );
}

function FreeNow() {
  const { data: nodes } = useQuery(nodesQuery);
  if (nodes === undefined) return null;
  const open = nodes.filter(isSchedulable);
  const freeAmounts = open.map(free);
  const cpu = freeAmounts.reduce((sum, amounts) => sum + amounts.cpu, 0) / 1000;
  const memory = freeAmounts.reduce((sum, amounts) => sum + amounts.memory, 0);
  const gpus = freeAmounts.reduce((sum, amounts) => sum + gpuCount(amounts), 0);
  return (
    <span className="dimmer num placement-free">
      free on {pluralize(open.length, "node")}: {cpu.toFixed(cpu < 10 ? 1 : 0)} CPU · {bytes(memory)} ·{" "}
      {pluralize(gpus, "GPU")}
    </span>
  );
}
