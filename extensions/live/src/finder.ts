// The learning-rate sweep: raw losses faint, the smoothed line, what each rule suggests, and the rate you chose.

import uPlot from "uplot";
import { Card } from "./card";
import { Choice } from "./choice";
import { Flags, height, place, ROW, type Flag, type Placed } from "./flags";
import { number, rate, tick } from "./format";
import { Handle } from "./handle";
import { baseOptions, followWidth, HEIGHT, logSplits, quantile, rangeOf, type PaletteOf } from "./plot";
import type { Store } from "./store";

const LR = 0, LOSS = 1, SMOOTHED = 2; // columns, as workbench/ui/searches.py has them
const BASE = 10; // padding above the plot where no names are

export class Finder {
  readonly card = new Card(
    "Learning-rate finder",
    "Press Find beside the learning rate: the loss over rising rates appears here.",
    "finder",
  );
  private plot: uPlot | null = null;
  private readonly flags = new Flags();
  private placed: Placed[] = [];
  private arranged = "";
  private readonly handle: Handle;
  private readonly close: () => void;

  constructor(
    private readonly store: Store,
    private readonly colours: PaletteOf,
  ) {
    this.handle = new Handle("x", new Choice(store.model, "marker"), "Chosen learning rate", () => {});
    this.card.setKey([
      { name: "raw", swatch: "dots" },
      { name: "smoothed", swatch: "line" },
      { name: "suggested", swatch: "diamond" },
      { name: "you", swatch: "you" },
    ]);
    this.close = followWidth(this.card.body, () => this.plot);
  }

  draw(): void {
    const rows = this.store.curve.rows;
    this.card.empty = rows.count === 0;
    if (rows.count === 0) return;
    const data = [LR, LOSS, SMOOTHED].map((column) => rows.column(column)) as uPlot.AlignedData;
    if (this.plot) this.plot.setData(data);
    else this.make(data);
    this.caption();
  }

  move(): void {
    this.handle.place();
  }

  redraw(): void {
    this.plot?.redraw(false);
  }

  destroy(): void {
    this.close();
    this.plot?.destroy();
  }

  private make(data: uPlot.AlignedData): void {
    const base = baseOptions(this.colours, { x: "learning rate", y: "loss" });
    const [x, y] = base.axes as [uPlot.Axis, uPlot.Axis];
    const options: uPlot.Options = {
      ...base,
      width: this.card.body.clientWidth || 300,
      padding: [() => BASE + height(this.placed), 14, 0, 0],
      scales: {
        x: { time: false, distr: 3, range: (_u, min, max) => (min < max ? [min, max] : [min / 2, min * 2]) },
        y: { range: () => this.lossRange() },
      },
      axes: [
        { ...x, splits: (_u, _i, min, max) => logSplits(min, max), filter: (_u, s) => s, values: (_u, s) => s.map(rate) },
        { ...y, values: (_u, s) => s.map((v) => (v == null ? "" : tick(v))) },
      ],
      series: [
        {},
        { stroke: () => this.colours().dots, paths: () => null, points: { show: true, size: 4, width: 0, fill: () => this.colours().dots } },
        { stroke: () => this.colours().line, width: 2, points: { show: false } },
      ],
      hooks: { draw: [(u) => this.marks(u)], setCursor: [(u) => this.read(u)], setSize: [() => this.soon()] },
    };
    this.plot = new uPlot(options, data, this.card.body);
    this.handle.attach(this.plot);
  }

  /** The part that matters: from the lowest loss before the edge to somewhat above where it began. What comes after runs off. */
  private lossRange(): [number, number] {
    const rows = this.store.curve.rows;
    const raw = rows.column(LOSS);
    const smoothed = rows.column(SMOOTHED);
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

  /** uPlot forgets a new size that is set while it draws. */
  private soon(): void {
    queueMicrotask(() => this.arrange());
  }

  /** Where the names go; their rows push the plot down. Nothing happens while nothing has changed. */
  private arrange(): void {
    const plot = this.plot;
    const { min, max } = plot?.scales["x"] ?? {};
    if (!plot || min == null || max == null) return;
    const suggestions = this.suggestions();
    const now = JSON.stringify([plot.over.clientWidth, min, max, suggestions]);
    if (now === this.arranged) return;
    this.arranged = now;
    const flags = suggestions.filter((flag) => flag.x >= min && flag.x <= max);
    this.placed = place(flags, (x) => plot.valToPos(x, "x"), plot.over.clientWidth);
    plot.setSize({ width: plot.width, height: HEIGHT }); // asks for the padding again
    this.flags.show(plot, this.placed);
  }

  private suggestions(): Flag[] {
    const curve = this.store.state.curve;
    if (!curve) return [];
    const best = curve.suggestion;
    const isBest = (lr: number) => best !== null && Math.abs(lr / best - 1) < 1e-4;
    const flags = curve.suggestions.map((s): Flag => ({
      x: s.lr,
      text: isBest(s.lr) ? `${s.name} ${rate(s.lr)}` : s.name,
      title: `${s.name}: ${rate(s.lr)}. ${s.why}`,
      strong: isBest(s.lr),
    }));
    if (best !== null && !flags.some((flag) => flag.strong)) {
      flags.push({ x: best, text: `suggested ${rate(best)}`, title: "The recommended rate", strong: true });
    }
    return flags;
  }

  private marks(plot: uPlot): void {
    this.soon();
    const { ctx } = plot;
    const { found, paper } = this.colours();
    const scale = devicePixelRatio;
    ctx.save();
    for (const flag of [...this.placed].reverse()) { // the recommended one last, over the others
      const x = plot.valToPos(flag.x, "x", true);
      const y = Math.max(plot.valToPos(this.smoothedAt(flag.x), "y", true), plot.bbox.top);
      ctx.strokeStyle = found;
      ctx.lineWidth = scale * (flag.strong ? 1.25 : 0.75);
      ctx.globalAlpha = flag.strong ? 0.9 : 0.45;
      ctx.beginPath();
      ctx.moveTo(x, plot.bbox.top - (flag.row * ROW + 2) * scale);
      ctx.lineTo(x, y);
      ctx.stroke();
      ctx.globalAlpha = 1;
      diamond(ctx, x, y, (flag.strong ? 7 : 4.5) * scale);
      ctx.fillStyle = flag.strong ? found : paper;
      ctx.lineWidth = 1.5 * scale;
      ctx.fill();
      ctx.stroke();
    }
    ctx.restore();
    this.handle.place();
  }

  /** The smoothed loss at a rate between two points, on the logarithmic axis. */
  private smoothedAt(lr: number): number {
    const rows = this.store.curve.rows;
    let i = 1;
    while (i < rows.count - 1 && rows.at(i, LR) < lr) i += 1;
    const [x0, x1] = [rows.at(i - 1, LR), rows.at(i, LR)];
    const [y0, y1] = [rows.at(i - 1, SMOOTHED), rows.at(i, SMOOTHED)];
    const share = x1 > x0 ? Math.log(lr / x0) / Math.log(x1 / x0) : 1;
    return y0 + (y1 - y0) * Math.min(Math.max(share, 0), 1);
  }

  private read(plot: uPlot): void {
    const i = plot.cursor.idx;
    const rows = this.store.curve.rows;
    this.card.setValue("raw", i == null ? "" : number(rows.at(i, LOSS)));
    this.card.setValue("smoothed", i == null ? "" : `${number(rows.at(i, SMOOTHED))} at ${rate(rows.at(i, LR))}`);
  }

  private caption(): void {
    const curve = this.store.state.curve;
    this.card.setCaption(curve ? [curve.ended, ...curve.notes].filter(Boolean).join(" · ") : "");
  }
}

function diamond(ctx: CanvasRenderingContext2D, x: number, y: number, r: number): void {
  ctx.beginPath();
  ctx.moveTo(x, y - r);
  ctx.lineTo(x + r, y);
  ctx.lineTo(x, y + r);
  ctx.lineTo(x - r, y);
  ctx.closePath();
}
