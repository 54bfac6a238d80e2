// The card of the total gradient norm, with the clip values used, the chosen one (to be dragged), and lines of single layers.

import { Card } from "../shared/card";
import { changes } from "../training/setting-changes";
import { NumberTrait } from "../shared/number-trait";
import { el, setText, focusIn } from "../shared/dom";
import { number, rate } from "../shared/format";
import { DragHandle } from "../plot/drag-handle";
import { BAD, CLIPPED, NORM_HIGH, NORM_LOW, NORM_MEAN, NORM_SMOOTH, roomOf } from "../training/loss";
import { SelectedLayers } from "./selected-layers";
import type { FitAxis } from "../plot/axis";
import { Frame } from "../plot/frame";
import type { Hover } from "../plot/hover";
import type { Layer, Value } from "../plot/layers";
import { csvOf, svgOf } from "../plot/save";
import { rangeOf, type PaletteOf } from "../plot/scales";
import { smoothed, type Smoothing } from "../plot/smooth";
import { axisChoice, logToggle, options, plotTools, smoothing } from "../plot/toolbar";
import type { Store } from "../data/store";
import { texts } from "../texts";

const { norm: words } = texts;
const VALUE = 8, BY_VALUE = 15; // digits of "0.001234", and of "0.0012, by value"

export class Norm {
  readonly card = new Card(words.title, words.hint, "norm");
  private readonly frame: Frame;
  private readonly picks: SelectedLayers;
  private readonly smoothing: Smoothing;
  private readonly tools: { draw: () => void }[];
  private readonly advice = el("span", "wb-advice");
  private readonly use = el("button", "wb-tool", "", { type: "button" });
  private readonly handle: DragHandle;
  /** The value on the button, which a click takes: a newer one may have come that is not drawn yet. */
  private offered?: number;
  private clipped = ""; // what clipping did at the cursor, in words

  constructor(
    private readonly store: Store,
    private readonly colours: PaletteOf,
    private readonly axis: FitAxis,
    hover: Hover,
  ) {
    this.handle = new DragHandle("y", new NumberTrait(store.model, "clip"), words.chosen, () => {}, { factor: () => (this.lined ? 1 : 0), text: rate });
    this.picks = new SelectedLayers(store, colours);
    this.card.setKey([
      { name: words.total, swatch: "faint" },
      { name: words.smoothed, swatch: "line", room: 8 },
      { name: words.clip, swatch: "clip" },
    ]);
    this.frame = new Frame(this.card.body, colours, {
      name: words.title,
      places: () => axis.places(store.fit.rows.steps()),
      layers: () => this.layers(),
      across: () => axis.across,
      up: words.up,
      fit: () => this.values(),
      range: (log) => (log ? this.decades() : rangeOf(this.values().filter((value): value is number => value !== null))),
      read: (at) => this.read(at),
      words: () => this.reading(),
      step: (place) => axis.step(place),
      place: (step) => axis.place(step),
      made: (plot) => this.handle.attach(plot),
      drawn: () => this.handle.place(),
    }, hover);
    this.smoothing = smoothing(store, "norm.smoothing", "auto", () => this.draw());
    const across = axisChoice(axis);
    const log = logToggle(store, "norm.log", this.frame, "on");
    this.tools = [across, log];
    this.card.tools.append(across.root, log.root, options(this.smoothing.root));
    plotTools(this.card, "gradient-norm", {
      svg: () => svgOf(this.frame, words.title, colours()),
      csv: () => csvOf(axis.across.label, this.layers()),
    }, this.frame);
    this.advice.append(el("span", "", words.suggested), this.use);
    this.use.addEventListener("click", () => {
      if (this.offered) store.request("use_clip", { value: this.offered });
    });
    this.card.body.after(this.picks.root);
    this.card.foot.append(this.advice);
    axis.listen(() => {
      this.frame.whole();
      this.draw();
    });
  }

  draw(): void {
    const rows = this.store.fit.rows;
    const some = rows.column(NORM_MEAN).some(Number.isFinite);
    if (!some && this.store.mustStay(this.card.root)) return;
    this.card.empty = !some;
    if (!some) return;
    this.frame.draw();
    this.tools.forEach((tool) => tool.draw());
    this.card.setCaption(this.store.state.norm?.caption ?? "");
    this.advise();
    this.read(this.frame.plot?.cursor.idx ?? null);
  }

  move(): void {
    this.advise();
    if (this.frame.plot) this.frame.draw(); // the scale makes room for the chosen line
  }

  redraw(): void {
    this.frame.redraw();
  }

  destroy(): void {
    this.frame.destroy();
  }

  /** Offer a clip value from the norms seen, until it is the chosen one. Then the focus moves to the chosen line, or else to the plot. */
  private advise(): void {
    const { suggested } = this.store.state.norm ?? {};
    const chosen = Number(this.store.model.get("clip"));
    const some = suggested != null && rate(suggested) !== rate(chosen);
    const held = !some && focusIn(this.advice) !== null;
    this.advice.hidden = !some;
    if (held) this.handle.value > 0 ? this.handle.focus() : this.frame.plot?.over.focus();
    if (!some) return;
    this.offered = suggested;
    setText(this.use, texts.use(rate(suggested)));
    this.use.title = words.suggestedTooltip(rate(suggested));
  }

  private layers(): Layer[] {
    const { store, axis } = this;
    const rows = store.fit.rows;
    const { faint, line, clip } = this.colours();
    const x = axis.places(rows.steps());
    const clips = this.clips();
    return [
      { name: words.total, kind: "area", x, y: rows.line(NORM_HIGH, true), low: rows.line(NORM_LOW, true), colour: faint },
      { name: words.smoothed, kind: "line", x, y: this.smooth(), colour: line, width: 2 },
      ...this.picks.layers(axis),
      ...(this.lined
        ? [{ name: words.clip, kind: "steps", x: this.from(clips), y: clips.map(([, value]) => (value > 0 ? value : null)), colour: clip, width: 1.75, dash: [6, 4] } as Layer]
        : []),
      changes(store, axis, this.colours()),
    ];
  }

  /** Where each clip value began to hold; the first one holds from the left edge on. */
  private from(clips: [number, number][]): number[] {
    return this.axis.places(clips.map(([step], i) => (i === 0 ? Math.min(step, this.store.fit.rows.origin) : step)));
  }

  private smooth(): Value[] {
    const rows = this.store.fit.rows;
    const { span } = this.smoothing;
    return span === "auto" ? rows.line(NORM_SMOOTH, true) : smoothed(rows.line(NORM_MEAN, true), span, rows.width, true);
  }

  private clips(): [number, number][] {
    return (this.store.state.clips ?? []).map(([step, clip]) => [step, clip ?? NaN]);
  }

  /** Whether a clip value is a line here: not where entries are clamped one by one, nor among norms of another order. */
  private get lined(): boolean {
    return this.store.state.norm?.lined !== false;
  }

  /** All values that the plot must hold. */
  private values(): Value[] {
    const rows = this.store.fit.rows;
    const chosen = this.lined ? [...this.clips().map(([, clip]) => clip), Number(this.store.model.get("clip"))] : [];
    return [...rows.line(NORM_HIGH, true), ...rows.line(NORM_LOW, true), ...chosen, ...this.picks.values()].filter((value) => value !== null && value > 0 && value < Infinity);
  }

  /** Eight decades at most. */
  private decades(): [number, number] {
    let [low, high] = [Infinity, 0];
    for (const value of this.values() as number[]) [low, high] = [Math.min(low, value), Math.max(high, value)];
    if (high === 0) return [0.1, 10];
    const air = 10 ** Math.max(Math.log10(high / low) * 0.08, 0.05);
    return [Math.max(low / air, high / 1e8), high * air];
  }

  /** With what was clipped at the cursor. */
  private reading(): string {
    const { plot } = this.frame;
    const step = this.store.fit.rows.step(plot?.cursor.idx ?? 0);
    return texts.list([texts.plot.reading(this.axis.named(this.axis.place(step)), this.card.reading() + this.clipped), ...this.picks.readings(step)]);
  }

  private read(hovered: number | null): void {
    const rows = this.store.fit.rows;
    const i = hovered ?? rows.count - 1;
    const share = rows.at(i, CLIPPED);
    const [low, high] = [rows.at(i, NORM_LOW), rows.at(i, NORM_HIGH)];
    const broken = rows.at(i, BAD) > 0 && !Number.isFinite(rows.at(i, NORM_MEAN));
    this.card.setRoom(words.total, roomOf(rows));
    this.card.setValue(words.total, broken ? texts.notFinite : rows.merged && hovered !== null ? texts.range(number(low), number(high)) : number(rows.at(i, NORM_MEAN)));
    this.card.setValue(words.smoothed, number(this.smooth()[i] ?? NaN));
    this.picks.draw(hovered === null ? null : rows.step(i));
    const clip = this.clips().filter(([step]) => step <= rows.step(i)).at(-1)?.[1] ?? NaN;
    const byValue = this.store.state.norm?.by_norm === false;
    this.clipped = hovered !== null && share > 0 ? (rows.merged ? words.clippedShare(Math.round(100 * share)) : words.clipped) : "";
    const value = byValue ? words.byValue(rate(clip)) : rate(clip);
    this.card.setValue(words.clip, clip > 0 ? value : words.off);
    this.card.setRoom(words.clip, byValue ? BY_VALUE : VALUE);
    this.card.setAt(hovered === null ? "" : this.axis.at(this.axis.place(rows.step(i))) + this.clipped);
  }
}
