// The total gradient norm, the clip line of the run, the clip value you chose and one that the norms suggest, picked layers.

import uPlot from "uplot";
import { Card } from "./card";
import { Choice } from "./choice";
import { el, say } from "./dom";
import { number, rate, steps as stepsWords, tick } from "./format";
import { Handle } from "./handle";
import { byKeyboard, waits } from "./keyboard";
import { BAD, CLIPPED, drawChanges, NORM_HIGH, NORM_LOW, NORM_MEAN, NORM_SMOOTH } from "./loss";
import { Picks } from "./picks";
import { baseOptions, followWidth, logSplits, WHOLE, type PaletteOf } from "./plot";
import type { Store } from "./store";

export class Norm {
  readonly card = new Card("Total gradient norm", "During a fit the total gradient norm and the clip line appear here.", "norm");
  private plot: uPlot | null = null;
  private readonly picks: Picks;
  private readonly advice = el("span", "wb-advice");
  private readonly use = el("button", "wb-tool", "", { type: "button" });
  private readonly handle: Handle;
  /** What the button says, which is what a click takes: a newer one may have come that is not drawn yet. */
  private offered?: number;
  private readonly close: () => void;

  constructor(
    private readonly store: Store,
    private readonly colours: PaletteOf,
    private readonly sync: string,
  ) {
    this.handle = new Handle("y", new Choice(store.model, "clip"), "Chosen clip value", () => {}, { factor: () => (this.lined ? 1 : 0), text: rate });
    this.picks = new Picks(store, colours);
    this.card.setKey([
      { name: "total", swatch: "faint" },
      { name: "smooth", swatch: "line" },
      { name: "clip line", swatch: "clip" },
    ]);
    this.advice.append(el("span", "", "suggested clip value"), this.use);
    this.use.addEventListener("click", () => {
      if (this.offered) store.request("use_clip", { value: this.offered });
    });
    this.card.body.after(this.picks.root);
    this.card.foot.append(this.advice);
    this.close = followWidth(this.card.body, () => this.plot);
  }

  draw(): void {
    const rows = this.store.fit.rows;
    const some = rows.column(NORM_MEAN).some(Number.isFinite);
    if (!some && waits(this.store, this.card.root)) return;
    this.card.empty = !some;
    if (!some) return;
    const data = [rows.steps(), ...[NORM_HIGH, NORM_LOW, NORM_SMOOTH].map((c) => rows.line(c, true))] as uPlot.AlignedData;
    if (this.plot) this.plot.setData(data);
    else this.make(data);
    this.card.setCaption(this.store.state.norm?.caption ?? "");
    this.advise();
    this.read();
  }

  move(): void {
    this.advise();
    // The scale makes room for the chosen line. Not `redraw(true)`: it takes the horizontal scale as it is, and a plot made
    // within this frame has none yet.
    this.plot?.setData(this.plot.data);
  }

  redraw(): void {
    this.plot?.redraw(false);
  }

  destroy(): void {
    this.close();
    this.plot?.destroy();
  }

  /** A clip value from the norms seen, until it is the chosen one. Then the focus goes on to the line that was chosen, or where none was to the plot. */
  private advise(): void {
    const { suggested } = this.store.state.norm ?? {};
    const chosen = Number(this.store.model.get("clip"));
    const some = suggested != null && rate(suggested) !== rate(chosen);
    const held = !some && this.advice.contains(document.activeElement);
    this.advice.hidden = !some;
    if (held) this.handle.value > 0 ? this.handle.focus() : this.plot?.over.focus();
    if (!some) return;
    this.offered = suggested;
    say(this.use, `Use ${rate(suggested)}`);
    this.use.title = `Nine of ten of the last norms lie below ${rate(suggested)}: clipping there cuts the tail and leaves the rest alone`;
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
      axes: [{ ...x, incrs: WHOLE }, {
        ...y,
        splits: (_u, _i, min, max) => logSplits(min, max),
        filter: (_u, s) => s,
        values: (_u, s) => s.map((v) => (v == null ? "" : tick(v))),
      }],
      series: [{}, faint, unseen, { stroke: () => this.colours().line, width: 2, points: { show: false } }],
      bands: [{ series: [1, 2], fill: () => this.colours().faint }],
      hooks: {
        draw: [(u) => this.picks.lines(u), (u) => this.clipLine(u), (u) => drawChanges(u, this.store, this.colours), () => this.handle.place()],
        setCursor: [() => this.read()],
      },
    };
    this.plot = new uPlot(options, data, this.card.body);
    byKeyboard(this.plot, "Total gradient norm", () => this.words());
    this.handle.attach(this.plot);
  }

  private clips(): [number, number][] {
    return (this.store.state.clips ?? []).map(([step, clip]) => [step, clip ?? NaN]);
  }

  /** Whether a clip value is a line here: not where entries are clamped one by one, nor among norms of another order. */
  private get lined(): boolean {
    return this.store.state.norm?.lined !== false;
  }

  /** All there is, eight decades at most. */
  private range(): [number, number] {
    const rows = this.store.fit.rows;
    let [low, high] = [Infinity, 0];
    const hold = (value: number) => {
      if (!(value > 0) || value === Infinity) return;
      low = Math.min(low, value);
      high = Math.max(high, value);
    };
    rows.column(NORM_HIGH).forEach(hold);
    rows.column(NORM_LOW).forEach(hold);
    if (this.lined) {
      this.clips().forEach(([, clip]) => hold(clip));
      hold(Number(this.store.model.get("clip")));
    }
    for (const value of this.picks.values()) hold(value);
    if (high === 0) return [0.1, 10];
    const air = 10 ** Math.max(Math.log10(high / low) * 0.08, 0.05);
    return [Math.max(low / air, high / 1e8), high * air];
  }

  /** The clip value that held, step by step. */
  private clipLine(plot: uPlot): void {
    if (!this.lined) return;
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

  private words(): string {
    const step = this.store.fit.rows.step(this.plot?.cursor.idx ?? 0);
    return [`update ${stepsWords(Math.round(step))}: ${this.card.words()}`, ...this.picks.words(step)].join(", ");
  }

  private read(): void {
    const rows = this.store.fit.rows;
    const hovered = this.plot?.cursor.idx;
    const i = hovered ?? rows.count - 1;
    const share = rows.at(i, CLIPPED);
    const spread = rows.merged ? ` (${number(rows.at(i, NORM_LOW))} to ${number(rows.at(i, NORM_HIGH))})` : "";
    const broken = rows.at(i, BAD) > 0 && !Number.isFinite(rows.at(i, NORM_MEAN));
    this.card.setValue("total", broken ? "not finite" : number(rows.at(i, NORM_MEAN)) + (hovered == null ? "" : spread));
    this.card.setValue("smooth", number(rows.at(i, NORM_SMOOTH)));
    this.picks.draw(hovered == null ? null : rows.step(i));
    const clip = this.clips().filter(([step]) => step <= rows.step(i)).at(-1)?.[1] ?? NaN;
    const byValue = this.store.state.norm?.by_norm === false;
    const clipped = hovered != null && share > 0 ? (rows.merged ? ` · ${Math.round(100 * share)}% clipped` : " · clipped") : "";
    this.card.setValue("clip line", (clip > 0 ? rate(clip) + (byValue ? ", by value" : "") : "off") + clipped);
  }
}
