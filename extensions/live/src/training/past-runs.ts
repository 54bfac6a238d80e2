// Draws the smoothed losses of previous runs in grey, in the plot of the loss.

import type { KeyItem } from "../shared/card";
import { number } from "../shared/format";
import type { AxisName } from "../plot/axis";
import type { Layer } from "../plot/layers";
import type { PaletteOf } from "../plot/scales";
import type { Store } from "../data/store";
import { texts } from "../texts";

// Columns of "past", as workbench/ui/canvas/runs/past_curves.py has them; of samples nothing is known.
const WHICH = 0, LOSS = 4;
export const PLACE: Partial<Record<AxisName, number>> = { update: 1, epoch: 2, time: 3 };
const DASHES = [[], [5, 3], [1.5, 2.5]]; // as the swatches in shared.css

interface Line {
  run: string;
  words: string;
  x: number[];
  y: number[];
}

export class PastRuns {
  shown = true;
  private all: Line[] = [];

  constructor(
    private readonly store: Store,
    private readonly colours: PaletteOf,
  ) {}

  /** Read the curves from the store, with their places on this axis. */
  read(axis: AxisName): void {
    const rows = this.store.past.rows;
    const place = PLACE[axis];
    this.all = (this.store.state.past ?? []).map(({ run, words }) => ({ run, words, x: [], y: [] }));
    if (place === undefined) return;
    for (let row = 0; row < rows.count; row += 1) {
      const line = this.all[rows.at(row, WHICH)];
      const x = rows.at(row, place);
      if (!line || !Number.isFinite(x)) continue;
      line.x.push(x);
      line.y.push(rows.at(row, LOSS));
    }
  }

  get lines(): Line[] {
    return this.shown ? this.all : [];
  }

  /** Losses that a plot up to `end` must have room for. */
  values(end: number): number[] {
    return this.lines.flatMap((line) => line.y.filter((_, i) => (line.x[i] as number) <= end));
  }

  layers(): Layer[] {
    return this.lines.map(({ run, x, y }, i) => ({
      name: run, kind: "line", x, y, colour: this.colours().muted, width: 1, alpha: 0.6, dash: DASHES[i % DASHES.length] as number[],
    }));
  }

  /** What each had at a place, or at its end. */
  value({ x, y }: Line, at: number | null): string {
    let k = x.length - 1;
    while (at !== null && k > 0 && (x[k] as number) > at) k -= 1;
    return number(y[k] ?? NaN);
  }

  keys(): KeyItem[] {
    return this.lines.map(({ run, words }, i) => ({ name: run, swatch: `past-${i}`, room: 8, note: words, below: true }));
  }

  caption(): string {
    return this.lines.length ? texts.loss.previousRuns(this.lines.length) : "";
  }
}
