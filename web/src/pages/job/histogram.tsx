import { number } from "~/lib/format";

const WIDTH = 120; // px
const HEIGHT = 22;

/** Equal bins from low to high. */
export function Histogram({ histogram }: { histogram: { low: number; high: number; counts: number[] } }) {
  const { low, high, counts } = histogram;
  const most = Math.max(...counts, 1);
  const width = WIDTH / counts.length;
  return (
    <svg
      className="histogram"
      width={WIDTH}
      height={HEIGHT}
      role="img"
      aria-label={`Histogram from ${number(low)} to ${number(high)}`}
    >
      <title>{`${number(low)} … ${number(high)}`}</title>
      {counts.map((count, i) => {
        const height = count === 0 ? 0 : Math.max(1, (count / most) * HEIGHT);
        return <rect key={`${i * width}`} x={i * width} y={HEIGHT - height} width={Math.max(0.5, width - 0.5)} height={height} />;
      })}
    </svg>
  );
}
