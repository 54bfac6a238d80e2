// The sweeps before the one that is drawn: their smoothed lines, faint and dashed, and which one is under the mouse.

import type uPlot from "uplot";
import { el, say } from "./dom";
import { rate } from "./format";
import type { PaletteOf } from "./plot";
import type { Store } from "./store";

const WHICH = 0, LR = 1, LOSS = 2; // columns, as workbench/ui/canvas/sweeps.py has them
const NEAR = 9; // pixels
const DASHES = [[2, 3], [7, 4]]; // from the oldest on; colour alone would not tell them apart

interface Line {
  run: string;
  suggestion: number | null;
  points: [number, number][];
}

export class Behind {
  lines: Line[] = [];
  private readonly tag = el("div", "wb-tag");
  private hovered: Line | null = null;

  constructor(
    private readonly store: Store,
    private readonly colours: PaletteOf,
  ) {}

  /** Take in what there is now. */
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

  draw(plot: uPlot): void {
    const { ctx, bbox } = plot;
    const { muted } = this.colours();
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    this.lines.forEach((line, i) => {
      const near = line === this.hovered;
      ctx.strokeStyle = muted;
      ctx.globalAlpha = near ? 1 : 0.55;
      ctx.lineWidth = (near ? 2 : 1.25) * devicePixelRatio;
      ctx.setLineDash(this.dash(i).map((length) => length * devicePixelRatio));
      ctx.beginPath();
      for (const [lr, loss] of line.points) ctx.lineTo(plot.valToPos(lr, "x", true), plot.valToPos(loss, "y", true));
      ctx.stroke();
    });
    ctx.restore();
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
    if (nearest) say(this.tag, `run ${nearest.run}: suggested ${this.words(nearest, scale)}`);
    return news;
  }

  /** What its key says of a line. */
  words(line: Line, scale: (lr: number) => number): string {
    return line.suggestion === null ? "no rate" : rate(scale(line.suggestion));
  }

  private dash(i: number): number[] {
    return DASHES[i + DASHES.length - this.lines.length] ?? [];
  }
}
