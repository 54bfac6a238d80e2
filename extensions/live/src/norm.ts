// The total gradient norm, the clip line of the run, the clip value you chose, and one layer where one is picked.

import uPlot from "uplot";
import { Card } from "./card";
import { Choice } from "./choice";
import { number, rate, tick } from "./format";
import { Handle } from "./handle";
import { CLIPPED, drawChanges, NORM_HIGH, NORM_LOW, NORM_MEAN, NORM_SMOOTH } from "./loss";
import { baseOptions, followWidth, logSplits, type PaletteOf } from "./plot";
import type { Store } from "./store";

export class Norm {
  readonly card = new Card("Total gradient norm", "During a fit the total gradient norm and the clip line appear here.", "norm");
  private plot: uPlot | null = null;
  private layer: number | null = null;
  private readonly handle: Handle;
  private readonly close: () => void;

  constructor(
    private readonly store: Store,
    private readonly colours: PaletteOf,
    private readonly sync: string,
  ) {
    this.handle = new Handle("y", new Choice(store.model, "clip"), "Chosen clip value", () => {});
    this.key();
    this.close = followWidth(this.card.body, () => this.plot);
  }

  /** Show one layer's norm too (null: none). */
  pick(layer: number | null): void {
    this.layer = layer;
    this.key();
    this.draw();
  }

  draw(): void {
    const rows = this.store.fit.rows;
    const some = rows.column(NORM_MEAN).some(Number.isFinite);
    this.card.empty = !some;
    if (!some) return;
    const columns = [NORM_HIGH, NORM_LOW, NORM_SMOOTH].map((c) => rows.column(c).map(positive));
    const data = [rows.steps(), ...columns] as uPlot.AlignedData;
    if (this.plot) this.plot.setData(data);
    else this.make(data);
    this.card.setCaption(this.store.state.norm?.caption ?? "");
    this.read();
  }

  move(): void {
    this.plot?.redraw(true); // the scale makes room for the chosen line
  }

  redraw(): void {
    this.plot?.redraw(false);
  }

  destroy(): void {
    this.close();
    this.plot?.destroy();
  }

  private key(): void {
    const name = this.layer === null ? null : (this.store.state.layers?.[this.layer] ?? null);
    this.card.setKey([
      { name: "total", swatch: "faint" },
      { name: "smooth", swatch: "line" },
      { name: "clip line", swatch: "clip" },
      ...(name === null ? [] : [{ name, swatch: "found" }]),
    ]);
  }

  private make(data: uPlot.AlignedData): void {
    const base = baseOptions(this.colours, { x: "update", y: "norm (log)" });
    const [x, y] = base.axes as [uPlot.Axis, uPlot.Axis];
    const faint = { stroke: () => this.colours().faint, width: 1, points: { show: false } };
    const unseen = { ...faint, width: 0, stroke: "transparent" };
    const options: uPlot.Options = {
      ...base,
      width: this.card.body.clientWidth || 300,
      padding: [18, 14, 0, 0],
      cursor: { ...base.cursor, sync: { key: this.sync, scales: ["x", null] } },
      scales: {
        x: { time: false, range: (_u, min, max) => [min, max > min ? max : min + 1] },
        y: { distr: 3, range: () => this.range() },
      },
      axes: [x, {
        ...y,
        splits: (_u, _i, min, max) => logSplits(min, max),
        filter: (_u, s) => s,
        values: (_u, s) => s.map((v) => (v == null ? "" : tick(v))),
      }],
      series: [{}, faint, unseen, { stroke: () => this.colours().line, width: 2, points: { show: false } }],
      bands: [{ series: [1, 2], fill: () => this.colours().faint }],
      hooks: {
        draw: [(u) => this.layerLine(u), (u) => this.clipLine(u), (u) => drawChanges(u, this.store, this.colours), () => this.handle.place()],
        setCursor: [() => this.read()],
      },
    };
    this.plot = new uPlot(options, data, this.card.body);
    this.handle.attach(this.plot);
  }

  private clips(): [number, number][] {
    if (this.store.state.norm?.by_norm === false) return []; // values are clamped one by one: no line to draw
    return (this.store.state.clips ?? []).map(([step, clip]) => [step, clip ?? NaN]);
  }

  private range(): [number, number] {
    const rows = this.store.fit.rows;
    const chosen = Number(this.store.model.get("clip"));
    const values = [...rows.column(NORM_HIGH), ...rows.column(NORM_LOW), ...this.clips().map(([, v]) => v), chosen, ...this.layerValues()];
    const logs = values.filter((v) => v > 0 && Number.isFinite(v)).map(Math.log10);
    if (!logs.length) return [0.1, 10];
    const [low, high] = [Math.min(...logs), Math.max(...logs)];
    const air = Math.max((high - low) * 0.08, 0.05);
    return [10 ** Math.max(low - air, high - 8), 10 ** (high + air)];
  }

  private layerValues(): number[] {
    const { heat } = this.store;
    return this.layer === null || this.layer >= heat.rows.columns ? [] : heat.rows.column(this.layer);
  }

  private layerLine(plot: uPlot): void {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.strokeStyle = this.colours().found;
    ctx.lineWidth = 1.5 * devicePixelRatio;
    ctx.beginPath();
    let pen = false;
    this.layerValues().forEach((value, i) => {
      if (!(value > 0) || !Number.isFinite(value)) {
        pen = false;
        return;
      }
      const [x, y] = [plot.valToPos(this.store.heat.rows.step(i), "x", true), plot.valToPos(value, "y", true)];
      if (pen) ctx.lineTo(x, y);
      else ctx.moveTo(x, y);
      pen = true;
    });
    ctx.stroke();
    ctx.restore();
  }

  /** The clip value that held, step by step. */
  private clipLine(plot: uPlot): void {
    const clips = this.clips();
    const { ctx, bbox } = plot;
    const end = bbox.left + bbox.width;
    ctx.save();
    ctx.strokeStyle = this.colours().clip;
    ctx.lineWidth = 1.75 * devicePixelRatio;
    ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
    clips.forEach(([step, clip], i) => {
      if (!(clip > 0)) return;
      const y = plot.valToPos(clip, "y", true);
      const next = clips[i + 1];
      const from = Math.max(i === 0 ? bbox.left : plot.valToPos(step, "x", true), bbox.left);
      const to = Math.min(next ? plot.valToPos(next[0], "x", true) : end, end);
      if (from >= to) return;
      ctx.beginPath();
      ctx.moveTo(from, y);
      ctx.lineTo(to, y);
      ctx.stroke();
    });
    ctx.restore();
  }

  private read(): void {
    const rows = this.store.fit.rows;
    const hovered = this.plot?.cursor.idx;
    const i = hovered ?? rows.count - 1;
    const share = rows.at(i, CLIPPED);
    const spread = rows.width > 1 ? ` (${number(rows.at(i, NORM_LOW))} to ${number(rows.at(i, NORM_HIGH))})` : "";
    this.card.setValue("total", number(rows.at(i, NORM_MEAN)) + (hovered == null ? "" : spread));
    this.card.setValue("smooth", number(rows.at(i, NORM_SMOOTH)));
    const clip = this.clips().filter(([step]) => step <= rows.step(i)).at(-1)?.[1] ?? NaN;
    const clipped = hovered != null && share > 0 ? (rows.width > 1 ? ` · ${Math.round(100 * share)}% clipped` : " · clipped") : "";
    this.card.setValue("clip line", (clip > 0 ? rate(clip) : "off") + clipped);
  }
}

function positive(value: number): number | null {
  return value > 0 ? value : null;
}
