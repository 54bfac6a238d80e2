// Options, ranges and tick places of uPlot that all line plots share.

import type uPlot from "uplot";
import type { Palette } from "../shared/theme";
import { steps, tick } from "../shared/format";

export type PaletteOf = () => Palette;
export const CANVAS_FONT = '11px system-ui, -apple-system, "Segoe UI", sans-serif';
export const HEIGHT = 250;

export interface AxisWords {
  x: string;
  y: string;
}

export function baseOptions(colours: PaletteOf, label: AxisWords): Omit<uPlot.Options, "series"> {
  return {
    width: 300,
    height: HEIGHT,
    legend: { show: false },
    padding: [10, 14, 0, 0],
    cursor: { y: false, points: { show: false }, drag: { x: false, y: false, setScale: false } },
    scales: { x: { time: false }, y: {} },
    axes: [axis(colours, label.x, 34, 14, steps), { ...axis(colours, label.y, 56, 16, tick), side: 3 }],
  };
}

function axis(colours: PaletteOf, label: string, size: number, labelSize: number, format: (v: number) => string): uPlot.Axis {
  return {
    label,
    labelSize,
    size: size - labelSize + 2,
    gap: 4,
    labelGap: 0,
    font: CANVAS_FONT,
    labelFont: CANVAS_FONT,
    stroke: () => colours().muted,
    grid: { stroke: () => colours().grid, width: 1 },
    ticks: { show: false },
    border: { show: true, stroke: () => colours().grid, width: 1 },
    values: (_u, splits) => splits.map((v) => (v == null ? "" : format(v))),
  };
}

/** So far may the numbers of an axis of updates lie apart: there is no half an update. */
export const WHOLE = Array.from({ length: 12 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();
/** The same for seconds that are told as a clock does. */
export const CLOCK = [1, 2, 5, 10, 15, 30, ...[1, 2, 5, 10, 15, 30].map((n) => 60 * n), ...WHOLE.map((n) => 3600 * n)];

/** Round numbers from `low` to `high`, evenly apart: about `most`, and no closer than `least`. */
export function niceTicks(low: number, high: number, most: number, least = 0): number[] {
  const count = Math.max(1, most);
  const rough = Math.max((high - low) / count, 1e-300);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(least, [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough) ?? rough);
  const first = Math.ceil(low / step);
  return Array.from({ length: count + 1 }, (_, i) => (first + i) * step).filter((tick) => tick < high);
}

/** Splits of a logarithmic axis: each decade; within few decades also 2 and 5; where fewer than two of these lie on it, even ones. */
export function logSplits(min: number, max: number): number[] {
  const decades = Math.log10(max / min);
  const multiples = decades < 1.2 ? [1, 2, 3, 5, 7] : decades < 2.5 ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil(decades / 8));
  const out: number[] = [];
  for (let power = Math.floor(Math.log10(min)); power <= Math.ceil(Math.log10(max)); power += 1) {
    if (power % every !== 0) continue;
    for (const multiple of multiples) {
      const value = multiple * 10 ** power;
      if (value >= min * 0.999 && value <= max * 1.001) out.push(value);
    }
  }
  return out.length > 1 ? out : niceTicks(min, max, 5);
}

/** The smallest range that holds `values` (finite ones), with a little air; [0, 1] for none. */
export function rangeOf(values: Iterable<number>, air = 0.06): [number, number] {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (!Number.isFinite(value)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (low > high) return [0, 1];
  const room = (high - low || Math.abs(high) || 1) * air;
  return [low - room, high + room];
}

export function quantile(values: number[], q: number): number {
  const sorted = Float64Array.from(values.filter(Number.isFinite)).sort();
  if (!sorted.length) return NaN;
  return sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))] as number;
}
