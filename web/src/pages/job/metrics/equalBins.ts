/* Resampling of histograms to bins of equal width. */

/**
 * `count` equal bins from the first edge to the last: each gets a share of a given bin in proportion to their overlap.
 * TensorBoard's bins grow exponentially from 1e-12; drawn unchanged, those near zero would be needles.
 */
export function equalBins(edges: readonly number[], counts: readonly number[], count: number): number[] {
  const low = edges[0] ?? 0;
  const width = ((edges.at(-1) ?? low) - low) / count;
  const bins = new Array<number>(count).fill(0);
  counts.forEach((inside, i) => {
    const from = edges[i] ?? low;
    const to = edges[i + 1] ?? from;
    const first = width > 0 ? Math.min(Math.floor((from - low) / width), count - 1) : 0;
    for (let bin = first; bin < count; bin += 1) {
      const overlap = Math.min(to, low + (bin + 1) * width) - Math.max(from, low + bin * width);
      const share = to > from ? Math.max(overlap, 0) / (to - from) : Number(bin === first);
      bins[bin] = (bins[bin] ?? 0) + inside * share;
      if (low + (bin + 1) * width >= to) break;
    }
  });
  return bins;
}
