// The loss: raw values faint (their range, where a bucket holds several updates), smoothed, validation, changes.

import uPlot from "uplot";
import { Card } from "./card";
import { toggle } from "./dom";
import { number, rate, steps as stepsWords, tick } from "./format";
import { byKeyboard, waits } from "./keyboard";
import { baseOptions, CANVAS_FONT, followWidth, logSplits, quantile, rangeOf, WHOLE, type PaletteOf } from "./plot";
import { PastRuns } from "./pastruns";
import { RateStrip } from "./ratestrip";
import type { Store } from "./store";

// Columns of "fit", in the order of workbench/ui/canvas/training.py.
export const LOSS_LOW = 0, NORM_LOW = 1, LOSS_HIGH = 2, NORM_HIGH = 3, BAD = 4, NORM_MEAN = 5, CLIPPED = 6, SMOOTH = 7, RATE = 8, NORM_SMOOTH = 9;
// Columns of "val": the update, the metric, and the metric with averaged weights (NaN without).
const VAL = 1, AVERAGED = 2;

export class Loss {
  readonly card = new Card("Loss", "Press Fit: training and validation loss appear here.", "loss");
  private plot: uPlot | null = null;
  private log = false;
  private readonly past: PastRuns;
  private readonly strip: RateStrip;
  private readonly close: () => void;

  constructor(
    private readonly store: Store,
    private readonly colours: PaletteOf,
    private readonly sync: string,
  ) {
    this.past = new PastRuns(store, colours);
    this.strip = new RateStrip(store, colours, sync);
    this.card.body.after(this.strip.root);
    this.past.shown = store.looks("past runs", true);
    this.log = store.looks("loss log", false);
    const rates = store.looks("rates", false);
    this.strip.root.hidden = !rates;
    this.card.tools.append(
      toggle("past runs", "The last fits of this model behind this one", this.past.shown, (on) => {
        this.past.shown = on;
        store.keep("past runs", on);
        this.draw();
      }),
      toggle("lr", "The learning rate of each optimizer, below", rates, (on) => {
        this.strip.show(on);
        store.keep("rates", on);
      }),
      toggle("log", "Logarithmic loss axis", this.log, (on) => {
        this.log = on;
        store.keep("loss log", on);
        this.plot?.destroy();
        this.plot = null;
        this.draw();
      }),
    );
    this.key("val", "");
    this.close = followWidth(this.card.body, () => this.plot);
  }

  draw(): void {
    const rows = this.store.fit.rows;
    if (rows.count === 0 && waits(this.store, this.plot?.root)) return;
    this.card.empty = rows.count === 0;
    if (rows.count === 0) return;
    this.key(this.store.state.val?.name ?? "val", this.store.state.val?.averaged ?? "");
    this.past.read();
    const data = [rows.steps(), ...[LOSS_HIGH, LOSS_LOW, SMOOTH].map((c) => rows.line(c, this.log))] as uPlot.AlignedData;
    if (this.plot) this.plot.setData(data);
    else this.make(data);
    this.strip.draw();
    this.read();
  }

  redraw(): void {
    this.plot?.redraw(false);
    this.strip.redraw();
  }

  destroy(): void {
    this.close();
    this.strip.destroy();
    this.plot?.destroy();
  }

  private keyed: [string, string] = ["", ""];
  private key(val: string, averaged: string): void {
    if (this.keyed[0] === val && this.keyed[1] === averaged) return;
    this.keyed = [val, averaged];
    this.card.setKey([
      { name: "raw", swatch: "faint" },
      { name: "smooth", swatch: "line" },
      { name: val, swatch: "val" },
      ...(averaged ? [{ name: averaged, swatch: "averaged" }] : []),
      { name: "lr", swatch: "none" },
    ]);
  }

  private make(data: uPlot.AlignedData): void {
    const base = baseOptions(this.colours, { x: "update", y: this.log ? "loss (log)" : "loss" });
    const [x, y] = base.axes as [uPlot.Axis, uPlot.Axis];
    const logAxis: Partial<uPlot.Axis> = {
      splits: (_u, _i, min, max) => logSplits(min, max),
      filter: (_u, s) => s,
    };
    const faint = { stroke: () => this.colours().faint, width: 1, points: { show: false } };
    const unseen = { ...faint, width: 0, stroke: "transparent" };
    const options: uPlot.Options = {
      ...base,
      width: this.card.body.clientWidth || 300,
      padding: [18, 14, 0, 0],
      cursor: { ...base.cursor, sync: { key: this.sync, scales: ["x", null] } },
      scales: {
        x: { time: false, range: (_u, min, max) => [min, max > min ? max : min + 1] },
        y: { distr: this.log ? 3 : 1, range: () => this.range() },
      },
      axes: [{ ...x, incrs: WHOLE }, { ...y, ...(this.log ? logAxis : {}), values: (_u, s) => s.map((v) => (v == null ? "" : tick(v))) }],
      series: [{}, faint, unseen, { stroke: () => this.colours().line, width: 2, points: { show: false } }],
      bands: [{ series: [1, 2], fill: () => this.colours().faint }],
      hooks: { drawAxes: [(u) => this.past.draw(u)], draw: [(u) => this.validation(u, VAL), (u) => this.validation(u, AVERAGED), (u) => this.broken(u), (u) => drawChanges(u, this.store, this.colours)], setCursor: [() => this.read()] },
    };
    this.plot = new uPlot(options, data, this.card.body);
    byKeyboard(this.plot, "Loss", () => this.card.words());
  }

  /** All of the smooth line and of validation, and 98% of the raw values: single spikes run off the plot. */
  private range(): [number, number] {
    const rows = this.store.fit.rows;
    const high = rows.column(LOSS_HIGH);
    const values = [...rows.column(SMOOTH), ...this.store.val.rows.column(VAL), ...this.store.val.rows.column(AVERAGED), quantile(high, 0.98), ...high.slice(0, 1), quantile(rows.column(LOSS_LOW), 0.005), ...this.past.values(rows.step(rows.count - 1))];
    if (!this.log) return rangeOf(values);
    const [low, top] = rangeOf(values.filter((v) => v > 0).map(Math.log10));
    return [10 ** low, 10 ** top];
  }

  /** One column of the checks: circles for the metric as it is, squares for that of the averaged weights. */
  private validation(plot: uPlot, column: number): void {
    const val = this.store.val.rows;
    const { ctx, bbox } = plot;
    const scale = devicePixelRatio;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top - 4 * scale, bbox.width + 6 * scale, bbox.height + 8 * scale);
    ctx.clip();
    ctx.strokeStyle = ctx.fillStyle = column === VAL ? this.colours().val : this.colours().found;
    ctx.lineWidth = 1.25 * scale;
    const low = this.log ? 0 : -Infinity; // on a logarithmic axis uPlot has a place even for what is not a number: far below
    const there = Array.from({ length: val.count }, (_, i) => [val.at(i, 0), val.at(i, column)] as const)
      .filter(([, value]) => value > low && value < Infinity);
    const points = there.map(([step, value]) => [plot.valToPos(step, "x", true), plot.valToPos(value, "y", true)] as const);
    ctx.beginPath();
    points.forEach(([x, y], i) => (i ? ctx.lineTo(x, y) : ctx.moveTo(x, y)));
    ctx.globalAlpha = 0.7;
    ctx.stroke();
    ctx.globalAlpha = 1;
    const radius = (points.length > 120 ? 1.5 : 3) * scale;
    for (const [x, y] of points) {
      ctx.beginPath();
      if (column === VAL) ctx.arc(x, y, radius, 0, 2 * Math.PI);
      else ctx.rect(x - radius, y - radius, 2 * radius, 2 * radius);
      ctx.fill();
    }
    ctx.restore();
  }

  /** Updates whose loss or gradient was not finite: ticks at the foot of the plot. */
  private broken(plot: uPlot): void {
    const rows = this.store.fit.rows;
    const { ctx, bbox } = plot;
    ctx.fillStyle = this.colours().bad;
    for (let i = 0; i < rows.count; i += 1) {
      if (!(rows.at(i, BAD) > 0)) continue;
      const x = plot.valToPos(rows.step(i), "x", true);
      ctx.fillRect(x - devicePixelRatio, bbox.top + bbox.height - 8 * devicePixelRatio, 2 * devicePixelRatio, 8 * devicePixelRatio);
    }
  }

  /** Under the cursor; without one, the last values. */
  private read(): void {
    const rows = this.store.fit.rows;
    const hovered = this.plot?.cursor.idx;
    const i = hovered ?? rows.count - 1;
    const [low, high] = [rows.at(i, LOSS_LOW), rows.at(i, LOSS_HIGH)];
    const spread = rows.merged && low !== high;
    this.card.setValue("raw", spread ? `${number(low)} to ${number(high)}` : number(high));
    this.card.setValue("smooth", number(rows.at(i, SMOOTH)));
    this.card.setValue("lr", rate(rows.at(i, RATE)) + (hovered == null ? "" : ` at update ${stepsWords(Math.round(rows.step(i)))}`));
    this.card.setCaption(this.past.words(hovered == null ? null : rows.step(i)));
    this.keyed.forEach((name, k) => this.card.setValue(name, number(this.validationAt(rows.origin + (i + 1) * rows.width, VAL + k))));
  }

  private validationAt(step: number, column: number): number {
    const val = this.store.val.rows;
    let found = NaN;
    for (let i = 0; i < val.count && val.at(i, 0) <= step; i += 1) found = val.at(i, column);
    return found;
  }
}

/** Dotted lines where something was changed while the run went on, with what it was. */
export function drawChanges(plot: uPlot, store: Store, colours: PaletteOf): void {
  const { ctx, bbox } = plot;
  const scale = devicePixelRatio;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = colours().muted;
  ctx.lineWidth = scale;
  ctx.setLineDash([2 * scale, 3 * scale]);
  ctx.font = CANVAS_FONT.replace("11px", `${11 * scale}px`);
  ctx.textAlign = "left"; // the axes leave theirs behind
  let free = -Infinity; // names that would overlap the one before are left out; their lines stay
  for (const [step, text] of store.state.changes ?? []) {
    const x = plot.valToPos(step, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    const width = ctx.measureText(text).width;
    const left = Math.max(bbox.left, Math.min(x - width / 2, bbox.left + bbox.width - width));
    if (left > free) {
      ctx.fillText(text, left, bbox.top - 4 * scale);
      free = left + width + 8 * scale;
    }
  }
  ctx.restore();
}
