import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useEffect, useMemo, useRef, useState } from "react";
import { api, unwrap } from "~/api/client";
import { keys } from "~/api/queries";
import type { ChartSeries } from "~/api/types";
import { isInBytes, unitOf } from "~/lib/format";
import { lineOf } from "./series";
import { Chart, HUES } from "./lineChart";
import { Skeleton, Failure } from "~/components/parts";

export interface ChartOptions {
  by: "step" | "time";
  isLog: boolean;
  smoothing: number;
}

interface MetricCardProps extends ChartOptions {
  jobs: readonly string[];
  name: string;
  /** The name of a series in this chart. */
  label: (series: ChartSeries) => string;
}

const BUCKETS = 400;

/** One metric of one or more jobs. Its points are polled while it is in view. */
export function MetricCard({ jobs, name, label, by, isLog, smoothing }: MetricCardProps) {
  const box = useRef<HTMLElement>(null);
  const isInView = useInView(box);
  const { data, error, isPending, refetch } = useQuery({
    queryKey: keys.metrics(jobs, name, by),
    queryFn: () =>
      unwrap(
        api.GET("/api/v1/metrics/chart", { params: { query: { job: [...jobs], name: [name], by, buckets: BUCKETS } } }),
      ),
    enabled: isInView,
    placeholderData: keepPreviousData,
  });
  const lines = useMemo(
    () => (data?.series ?? []).map((series) => lineOf(series, label(series), by)),
    [data, label, by],
  );
  const unit = useMemo(() => unitOf(name), [name]);
  const bad = lines.reduce((sum, line) => sum + line.notFinite, 0);
  return (
    <section className="card metric" ref={box} aria-label={name}>
      <header>
        <h3 className="grow cut" title={name}>
          {name}
        </h3>
        {lines.length === 1 && <span className="num strong">{unit(data?.series[0]?.last_value)}</span>}
        {lines.length > 1 && <span className="dimmer num">{lines.length} lines</span>}
      </header>
      <div className="metric-body">
        {error !== null && data === undefined ? (
          <Failure error={error} retry={() => void refetch()} />
        ) : isPending ? (
          <Skeleton rows={5} height={22} />
        ) : (
          <Chart
            lines={lines}
            by={by}
            isLog={isLog}
            smoothing={smoothing}
            label={name}
            unit={unit}
            isBinary={isInBytes(name)}
          />
        )}
      </div>
      {lines.length > 1 && lines.length <= HUES && (
        <div className="legend" aria-hidden="true">
          {lines.map((line, i) => (
            <span key={line.key}>
              <i className={`line-${i}`} />
              {line.label}
            </span>
          ))}
        </div>
      )}
      {(bad > 0 || data?.is_cut) && (
        <p className="metric-note tone-amber">
          {bad > 0 && `${bad.toLocaleString()} ${bad === 1 ? "point is" : "points are"} NaN or infinite. `}
          {data?.is_cut && "Only some of the series are shown."}
        </p>
      )}
    </section>
  );
}

/** Whether the box is in view, or nearly. */
export function useInView(box: React.RefObject<HTMLElement | null>): boolean {
  const [isInView, setInView] = useState(false);
  useEffect(() => {
    if (box.current === null) return;
    const observer = new IntersectionObserver((entries) => setInView(entries.at(-1)?.isIntersecting ?? false), {
      rootMargin: "300px",
    });
    observer.observe(box.current);
    return () => observer.disconnect();
  }, [box]);
  return isInView;
}

export function ChartOptionsControls({
  options,
  set,
}: {
  options: ChartOptions;
  set: (options: ChartOptions) => void;
}) {
  return (
    <div className="row wrapping">
      <label className="row dim">
        Smoothing
        <input
          type="range"
          min={0}
          max={0.99}
          step={0.01}
          value={options.smoothing}
          onChange={(event) => set({ ...options, smoothing: Number(event.target.value) })}
        />
      </label>
      <label className="row dim">
        <input
          type="checkbox"
          className="check"
          checked={options.isLog}
          onChange={(event) => set({ ...options, isLog: event.target.checked })}
        />{" "}
        log scale
      </label>
      <select
        className="input auto"
        aria-label="X axis"
        value={options.by}
        onChange={(event) => set({ ...options, by: event.target.value as ChartOptions["by"] })}
      >
        <option value="step">by step</option>
        <option value="time">by time</option>
      </select>
    </div>
  );
}
