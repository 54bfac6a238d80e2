// Computes which losses of a sweep the plot shows: those of the end, where it diverges, run off the plot.

import { quantile, rangeOf } from "../plot/scales";

/** From the lowest loss before the edge to somewhat above where it began, earlier sweeps and the race included. What comes after runs off. */
export function lossRange(
  raw: number[],
  smoothed: number[],
  earlier: { points: [number, number][] }[],
  raced: [number, number][] = [],
): [number, number] {
  const ranges = earlier.map((line) => own(line.points.map(([, loss]) => loss), line.points.map(([, loss]) => loss)));
  if (raw.length) ranges.push(own(raw, smoothed));
  if (!ranges.length) return [0, 1];
  const [low, high] = [Math.min(...ranges.map(([low]) => low)), Math.max(...ranges.map(([, high]) => high))];
  const lowest = Math.min(...raced.map(([, loss]) => loss));
  return [lowest < low ? lowest - 0.05 * (high - lowest) : low, high];
}

function own(raw: number[], smoothed: number[]): [number, number] {
  const start = quantile(raw.slice(0, 10), 0.5);
  const lowest = Math.min(start, ...smoothed.filter(Number.isFinite));
  if (!Number.isFinite(start) || !Number.isFinite(lowest)) return rangeOf(raw);
  const spanFrom = (low: number) => Math.max(start - low, 0.1 * Math.abs(start), 1e-6);
  const top = start + 0.5 * spanFrom(lowest);
  const bottom = smoothed.indexOf(lowest); // -1 where it never fell below its start
  const edge = smoothed.findIndex((value, i) => i > bottom && !(value <= top));
  const low = Math.min(lowest, ...raw.slice(0, edge < 0 ? undefined : edge).filter(Number.isFinite));
  return [low - 0.1 * spanFrom(low), start + 0.5 * spanFrom(low)];
}
