import { number } from "~/lib/format";

const WIDTH = 120; // SVG units; the large variant fills its container
const HEIGHT = 22;

interface HistogramProps {
  histogram: { low: number; high: number; counts: number[] };
  isLarge?: boolean;
}

/** Equal bins from low to high. */
export function Histogram({ histogram: { low, high, counts }, isLarge = false }: HistogramProps) {
  const most = Math.max(...counts, 1);
  const width = WIDTH / counts.length;
  const total = counts.reduce((sum, count) => sum + count, 0) || 1;
  return (
    <svg
      className={isLarge ? "histogram large" : "histogram"}
      viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
      preserveAspectRatio="none"
      role="img"
      aria-label={`Histogram from ${number(low)} to ${number(high)}`}
    >
      {counts.map((count, i) => {
        const height = count === 0 ? 0 : Math.max(isLarge ? 0.15 : 1, (count / most) * HEIGHT);
        const from = low + ((high - low) * i) / counts.length;
        const share = ((count / total) * 100).toFixed(1);
        return (
          <rect
            key={`${i * width}`}
            x={i * width}
            y={HEIGHT - height}
            width={Math.max(0.4, width * 0.82)}
            height={height}
          >
            {isLarge && <title>{`from ${number(from)}: ${count.toLocaleString()} (${share} %)`}</title>}
          </rect>
        );
      })}
    </svg>
  );
}
