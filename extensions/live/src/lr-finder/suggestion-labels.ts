// Places the names of suggested rates above the plot, in as many rows as needed so that none overlap.

import type uPlot from "uplot";
import { el } from "../shared/dom";

export interface SuggestionLabel {
  x: number;
  text: string;
  title: string;
  strong: boolean;
}

export const ROW = 15;
const GAP = 6; // between a name and what stands next to it
const POLE = 3; // from a pole to its name
const MOST_ROWS = 6;

export interface Placed extends SuggestionLabel {
  left: number;
  row: number;
  /** Whether the name stands to the left of its pole, for want of room on the right. */
  turned: boolean;
}

interface Standing {
  from: number;
  to: number;
  pole: number;
  row: number;
}

/**
 * Each as low as it can stand. From the right to the left, so that a name lies under the poles left of it; then those that
 * turn to the left, in the other direction. Those beyond the last row are left out, the strong ones never.
 */
export function place(flags: SuggestionLabel[], position: (x: number) => number, width: number, lengthOf: (flag: SuggestionLabel) => number): Placed[] {
  const standing: Standing[] = [];
  const out: Placed[] = [];
  const known = flags.map((flag) => ({ flag, pole: position(flag.x), length: lengthOf(flag) }));
  const turns = known.map((one) => ({ ...one, turned: one.pole + POLE + one.length > width }));
  turns.sort((a, b) => Number(a.turned) - Number(b.turned) || (a.turned ? a.pole - b.pole : b.pole - a.pole));
  for (const { flag, pole, length, turned } of turns) {
    const left = turned ? Math.max(0, pole - POLE - length) : pole + POLE;
    const mine = { from: Math.min(left, pole), to: Math.max(left + length, pole), pole };
    let row = 0;
    while (row < MOST_ROWS && !standing.every((other) => apart({ ...mine, row }, other))) row += 1;
    if (row === MOST_ROWS && !flag.strong) continue;
    standing.push({ ...mine, row });
    out.push({ ...flag, left, row, turned });
  }
  return out;
}

/** Names in one row do not touch, and the pole of a higher one passes beside a lower one. */
function apart(a: Standing, b: Standing): boolean {
  const beside = a.to + GAP < b.from || b.to + GAP < a.from;
  if (a.row === b.row) return beside;
  const [high, low] = a.row > b.row ? [a, b] : [b, a];
  return high.pole < low.from + 1 || high.pole > low.to + 1;
}

export function height(placed: Placed[]): number {
  return placed.length ? (Math.max(...placed.map((flag) => flag.row)) + 1) * ROW + 4 : 0;
}

/** How wide a name is in the font of `host`. */
export function measure(host: HTMLElement): (flag: SuggestionLabel) => number {
  const pen = document.createElement("canvas").getContext("2d");
  const family = getComputedStyle(host).fontFamily;
  return (flag) => {
    if (!pen) return 7 * flag.text.length;
    pen.font = `${flag.strong ? "700 12px" : "11px"} ${family}`;
    return Math.ceil(pen.measureText(flag.text).width) + 2;
  };
}

/** Shows the names over `plot`, in the padding above it. */
export class SuggestionLabels {
  private readonly layer = el("div", "wb-flags");

  show(plot: uPlot, placed: Placed[]): void {
    this.layer.replaceChildren();
    for (const flag of placed) {
      const name = el("span", flag.strong ? "wb-flag wb-flag-strong" : "wb-flag", flag.text);
      if (flag.title) name.title = flag.title;
      name.style.left = `${flag.left}px`;
      name.style.top = `${-(flag.row + 1) * ROW - 3}px`;
      this.layer.append(name);
    }
    if (this.layer.parentElement !== plot.over) plot.over.append(this.layer);
  }
}
