import { useQuery } from "@tanstack/react-query";
import { useRef, useState } from "react";
import { metricObjectsQuery, objectSeriesQuery } from "~/api/queries";
import type { MetricObject } from "~/api/types";
import { useInView } from "~/components/charts/metricCard";
import { Skeleton, Failure } from "~/components/parts";
import { equalBins } from "./equalBins";
import { number } from "~/lib/format";

/** Histograms, images and texts of a job, each with a slider through its steps. */
export function Objects({ job, text }: { job: string; text: string }) {
  const { data } = useQuery(objectSeriesQuery(job));
  const shown = (data ?? []).filter((series) => series.name.toLowerCase().includes(text.toLowerCase()));
  if (shown.length === 0) return null;
  return (
    <div className="metrics">
      {shown.map((series) => (
        <ObjectCard key={`${series.kind}/${series.name}`} job={job} name={series.name} kind={series.kind} />
      ))}
    </div>
  );
}

function ObjectCard({ job, name, kind }: { job: string; name: string; kind: MetricObject["kind"] }) {
  const box = useRef<HTMLElement>(null);
  const isInView = useInView(box);
  const { data, error, isPending, refetch } = useQuery({ ...metricObjectsQuery(job, name, kind), enabled: isInView });
  const [chosen, setChosen] = useState<number | null>(null); // null: always the newest
  const items = data?.items ?? [];
  const at = Math.min(chosen ?? items.length - 1, items.length - 1);
  const item = items[at];
  return (
    <section className="card metric" ref={box} aria-label={name}>
      <header>
        <h3 className="grow cut" title={name}>
          {name}
        </h3>
        {item && <span className="dimmer num">step {number(item.step)}</span>}
      </header>
      <div className="object-body">
        {isPending ? (
          <Skeleton rows={4} height={22} />
        ) : error !== null && data === undefined ? (
          <Failure error={error} retry={() => void refetch()} />
        ) : (
          item && <ObjectView item={item} name={name} />
        )}
      </div>
      {items.length > 1 && (
        <input
          className="object-steps"
          type="range"
          aria-label={`Step of ${name}`}
          min={0}
          max={items.length - 1}
          value={at}
          onChange={(event) =>
            setChosen(Number(event.target.value) === items.length - 1 ? null : Number(event.target.value))
          }
        />
      )}
    </section>
  );
}

function ObjectView({ item, name }: { item: MetricObject; name: string }) {
  if (item.kind === "image" && item.url) return <img src={item.url} alt={`${name} at step ${item.step}`} />;
  if (item.kind === "histogram")
    return <HistogramBars data={item.data as { edges: number[]; counts: number[] }} name={name} />;
  return <pre className="plain">{typeof item.data === "string" ? item.data : JSON.stringify(item.data, null, 2)}</pre>;
}

const WIDTH = 300;
const HEIGHT = 120;

const BINS = 40;

function HistogramBars({
  data: { edges, counts },
  name,
}: {
  data: { edges: number[]; counts: number[] };
  name: string;
}) {
  const low = edges[0] ?? 0;
  const high = edges.at(-1) ?? 1;
  const bins = equalBins(edges, counts, BINS);
  const most = Math.max(...bins, 1e-300);
  const width = WIDTH / BINS;
  return (
    <figure>
      <svg
        className="histogram"
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        preserveAspectRatio="none"
        width="100%"
        height={HEIGHT}
        role="img"
        aria-label={`Histogram of ${name}`}
      >
        {bins.map((inside, i) => (
          <rect
            key={`${i * width}`}
            x={i * width}
            width={width - 0.5}
            y={HEIGHT - (inside / most) * HEIGHT}
            height={(inside / most) * HEIGHT}
          />
        ))}
      </svg>
      <figcaption className="row dimmer num">
        <span className="grow">{number(low)}</span>
        {number(high)}
      </figcaption>
    </figure>
  );
}
