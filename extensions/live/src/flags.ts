// Names above a plot, each with a thin leader down to its place: as many rows as it takes for none to overlap.

import type uPlot from "uplot";
import { el } from "./dom";

export interface Flag {
  x: number;
  text: string;
  title: string;
  strong: boolean;
}

export const ROW = 15;
const CHAR = 6.3; // the mean width of a character at 11 px
const GAP = 8;
const MOST_ROWS = 3;

export interface Placed extends Flag {
  left: number;
  row: number;
}

/** Rows are filled from the bottom; names stay within the plot's width. Those beyond the last row are left out. */
export function place(flags: Flag[], position: (x: number) => number, width: number): Placed[] {
  const ends: { from: number; to: number }[][] = [];
  const out: Placed[] = [];
  const order = [...flags].sort((a, b) => Number(b.strong) - Number(a.strong) || a.x - b.x);
  for (const flag of order) {
    const at = position(flag.x);
    const length = flag.text.length * CHAR * (flag.strong ? 1.1 : 1);
    const left = Math.min(Math.max(at - length / 2, 0), Math.max(0, width - length));
    const free = (row: number) => (ends[row] ?? []).every((e) => left > e.to + GAP || left + length < e.from - GAP);
    let row = 0;
    while (row < MOST_ROWS && !free(row)) row += 1;
    if (row === MOST_ROWS) continue;
    (ends[row] ??= []).push({ from: left, to: left + length });
    out.push({ ...flag, left, row });
  }
  return out;
}

export function height(placed: Placed[]): number {
  return placed.length ? (Math.max(...placed.map((flag) => flag.row)) + 1) * ROW + 4 : 0;
}

/** Shows the names over `plot`, in the padding above it. */
export class Flags {
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
