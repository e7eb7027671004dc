import type { UsageReport } from "~/api/types";
import { Card } from "~/components/parts";
import { amount, type Bar, barsOf, hours, measureOf } from "./measures";

const TITLES = { cost: "Cost", gpu_hours: "GPU-hours", cpu_hours: "Core-hours" } as const;

/** A bar for each day or month, in parts by group. The table below has the same figures as text. */
export function UsageChart({ report }: { report: UsageReport }) {
  const measure = measureOf(report);
  const { bars, keys } = barsOf(report, measure);
  const text = (value: number) => (measure === "cost" ? amount(value, report.currency) : hours(value));
  const largest = Math.max(...bars.map((bar) => bar.total), 0);
  if (largest === 0) return null;
  const hue = (key: string) => (keys.includes(key) ? `hue-${keys.indexOf(key)}` : "hue-none");
  const title = `${TITLES[measure]} by ${bars.length > 0 && isMonthly(bars) ? "month" : "day"}`;
  const has_rest = bars.some((bar) => bar.parts.some((part) => !keys.includes(part.key)));
  return (
    <Card title={title} aside={<span className="dim num">{text(sum(bars))} in all</span>}>
      <div
        className="usage-chart"
        role="img"
        aria-label={`${title}: at most ${text(largest)}, ${text(sum(bars))} in all`}
      >
        <span className="usage-scale dimmer small num">{text(largest)}</span>
        {bars.map((bar) => (
          <div key={bar.start} className="usage-bar" title={tip(bar, text)}>
            {bar.parts.map((part) => (
              <span key={part.key} className={hue(part.key)} style={{ height: `${(100 * part.value) / largest}%` }} />
            ))}
          </div>
        ))}
      </div>
      <div className="row usage-days dimmer small">
        <span className="grow">{bars[0]?.start.slice(0, 10)}</span>
        <span>{bars.at(-1)?.start.slice(0, 10)}</span>
      </div>
      <div className="row wrapping small usage-legend">
        {keys.map((key) => (
          <span key={key} className="row tight">
            <i className={`swatch ${hue(key)}`} aria-hidden="true" /> {key || "(none)"}
          </span>
        ))}
        {has_rest && (
          <span className="row tight">
            <i className="swatch hue-none" aria-hidden="true" /> others
          </span>
        )}
      </div>
    </Card>
  );
}

const sum = (bars: readonly Bar[]): number => bars.reduce((total, bar) => total + bar.total, 0);
const isMonthly = (bars: readonly Bar[]): boolean =>
  bars.length > 1 && bars.every((bar) => bar.start.slice(8, 10) === "01");

function tip(bar: Bar, text: (value: number) => string): string {
  const parts = bar.parts.map((part) => `${part.key || "others"}: ${text(part.value)}`);
  return [`${bar.start.slice(0, 10)}: ${text(bar.total)}`, ...parts].join("\n");
}
