// The fits before the one that goes on: their smoothed losses, faint behind it, named where they leave the plot.

import type uPlot from "uplot";
import { number } from "./format";
import { CANVAS_FONT, type PaletteOf } from "./plot";
import type { Store } from "./store";

const WHICH = 0, STEP = 1, LOSS = 2; // columns of "past", as workbench/ui/canvas/runs/past_curves.py has them
const DASHES = [[], [5, 3], [1.5, 2.5]];
const LINE = 12; // pixels between two names

interface Line {
  run: string;
  words: string;
  x: number[];
  y: number[];
}

export class PastRuns {
  shown = true;
  lines: Line[] = [];

  constructor(
    private readonly store: Store,
    private readonly colours: PaletteOf,
  ) {}

  /** Take in what there is now. */
  read(): void {
    const rows = this.store.past.rows;
    this.lines = (this.store.state.past ?? []).map(({ run, words }) => ({ run, words, x: [], y: [] }));
    for (let row = 0; row < rows.count; row += 1) {
      const line = this.lines[rows.at(row, WHICH)];
      line?.x.push(rows.at(row, STEP));
      line?.y.push(rows.at(row, LOSS));
    }
  }

  /** Losses that a plot up to update `end` must have room for. */
  values(end: number): number[] {
    return this.shown ? this.lines.flatMap((line) => line.y.filter((_, i) => (line.x[i] as number) <= end)) : [];
  }

  /** What each had at update `step`, or at its end. */
  words(step: number | null): string {
    if (!this.shown || !this.lines.length) return "";
    if (step === null) return `behind: ${this.lines.map((line) => `${line.run} (${line.words})`).join(" · ")}`;
    const parts = this.lines.map((line) => `${line.run} ${number(at(line, step))}`);
    return `behind, at this update: ${parts.join(" · ")}`;
  }

  draw(plot: uPlot): void {
    const end = plot.scales["x"]?.max;
    if (!this.shown || end == null) return;
    const { ctx, bbox } = plot;
    const scale = devicePixelRatio;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.strokeStyle = ctx.fillStyle = this.colours().muted;
    ctx.lineWidth = scale;
    ctx.font = CANVAS_FONT.replace("11px", `${10.5 * scale}px`);
    ctx.textAlign = "right";
    const names: { text: string; x: number; y: number }[] = [];
    this.lines.forEach((line, i) => {
      ctx.globalAlpha = 0.6;
      ctx.setLineDash((DASHES[i % DASHES.length] as number[]).map((part) => part * scale));
      ctx.beginPath();
      line.x.forEach((x, k) => ctx.lineTo(plot.valToPos(x, "x", true), plot.valToPos(line.y[k] as number, "y", true)));
      ctx.stroke();
      const last = Math.min(end, line.x.at(-1) ?? NaN);
      const y = plot.valToPos(at(line, last), "y", true) - 4 * scale;
      if (Number.isFinite(y)) names.push({ text: line.run, x: Math.max(plot.valToPos(last, "x", true) - 3 * scale, bbox.left + 60 * scale), y });
    });
    ctx.globalAlpha = 1;
    ctx.setLineDash([]);
    ctx.strokeStyle = this.colours().paper;
    ctx.lineWidth = 4 * scale;
    ctx.lineJoin = "round";
    let above = Infinity; // from the lowest name upwards, none on another
    for (const name of names.sort((a, b) => b.y - a.y)) {
      const y = Math.max(bbox.top + LINE * scale, Math.min(name.y, above - LINE * scale));
      ctx.strokeText(name.text, name.x, y); // paper around the letters: its own line runs behind them
      ctx.fillText(name.text, name.x, y);
      above = y;
    }
    ctx.restore();
  }
}

/** The loss of the last point up to update `step`. */
function at(line: Line, step: number): number {
  let k = line.x.length - 1;
  while (k > 0 && (line.x[k] as number) > step) k -= 1;
  return line.y[k] ?? NaN;
}
