// Draws the smoothed lines of earlier sweeps in grey, and names the one under the mouse.

import type uPlot from "uplot";
import { el, setText } from "../shared/dom";
import { rate } from "../shared/format";
import type { Layer } from "../plot/layers";
import type { PaletteOf } from "../plot/scales";
import type { Store } from "../data/store";
import { texts } from "../texts";

const WHICH = 0, LR = 1, LOSS = 2; // columns, as workbench/ui/canvas/searches/sweeps.py has them
const NEAR = 9; // pixels
const DASHES = [[2, 3], [7, 4]]; // from the oldest on; colour alone would not tell them apart

interface Line {
  run: string;
  suggestion: number | null;
  points: [number, number][];
}

export class EarlierSweeps {
  lines: Line[] = [];
  private readonly tag = el("div", "wb-tag");
  private hovered: Line | null = null;

  constructor(
    private readonly store: Store,
    private readonly colours: PaletteOf,
  ) {}

  /** Read the lines from the store. */
  read(): void {
    const rows = this.store.earlier.rows;
    const curves = this.store.state.earlier_curves ?? [];
    this.lines = curves.map(({ run, suggestion }) => ({ run, suggestion, points: [] }));
    for (let row = 0; row < rows.count; row += 1) {
      this.lines[rows.at(row, WHICH)]?.points.push([rows.at(row, LR), rows.at(row, LOSS)]);
    }
    this.lines = this.lines.filter((line) => line.points.length > 1);
    this.hovered = null;
    this.tag.hidden = true;
  }

  attach(plot: uPlot): void {
    plot.over.append(this.tag);
  }

  layers(): Layer[] {
    return this.lines.map((line, i) => {
      const near = line === this.hovered;
      const [x, y] = [line.points.map(([lr]) => lr), line.points.map(([, loss]) => loss)];
      return { name: line.run, kind: "line", x, y, colour: this.colours().muted, alpha: near ? 1 : 0.55, width: near ? 2 : 1.25, dash: this.dash(i) };
    });
  }

  /** Whether another line than before, or none, is near this place of the plot. */
  hover(plot: uPlot, left: number, top: number, scale: (lr: number) => number): boolean {
    let nearest: Line | null = null;
    let least = NEAR;
    for (const line of this.lines) {
      for (const [lr, loss] of line.points) {
        const away = Math.hypot(plot.valToPos(lr, "x") - left, plot.valToPos(loss, "y") - top);
        if (away < least) [nearest, least] = [line, away];
      }
    }
    const news = nearest !== this.hovered;
    this.hovered = nearest;
    this.tag.hidden = nearest === null;
    if (nearest) setText(this.tag, texts.lrFinder.earlier(nearest.run, this.words(nearest, scale)));
    return news;
  }

  /** The rate that a sweep suggested, for the key of the plot. */
  words(line: Line, scale: (lr: number) => number): string {
    return line.suggestion === null ? texts.lrFinder.noRate : rate(scale(line.suggestion));
  }

  private dash(i: number): number[] {
    return DASHES[i + DASHES.length - this.lines.length] ?? [];
  }
}
