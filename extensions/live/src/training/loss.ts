// The card of the loss, with a sparkline for each metric beside it: raw and smoothed values, validation, changes, previous runs.

import { Card } from "../shared/card";
import { changes } from "./setting-changes";
import { el, toggle } from "../shared/dom";
import { number, rate } from "../shared/format";
import { Measures } from "./measures";
import { Metrics } from "./metrics";
import { PastRuns, PLACE } from "./past-runs";
import type { AxisName, FitAxis } from "../plot/axis";
import { Frame, type Subject } from "../plot/frame";
import type { Hover } from "../plot/hover";
import type { Layer, Value } from "../plot/layers";
import { Overlay } from "../plot/overlay";
import { csvOf, svgOf } from "../plot/save";
import { quantile, type PaletteOf } from "../plot/scales";
import { smoothed, type Smoothing } from "../plot/smooth";
import { axisChoice, logToggle, options, plotTools, smoothing } from "../plot/toolbar";
import { LRPlot } from "./lr-plot";
import type { Store } from "../data/store";
import { texts } from "../texts";

const { loss: words } = texts;
// Columns of "fit", in the order of workbench/ui/canvas/training.py.
export const LOSS_LOW = 0, NORM_LOW = 1, LOSS_HIGH = 2, NORM_HIGH = 3, BAD = 4, NORM_MEAN = 5, CLIPPED = 6, LOSS_MEAN = 7, SMOOTH = 8, RATE = 9, NORM_SMOOTH = 10;
// Columns of "val": the update, the metric, and the metric with averaged weights (NaN without).
const VAL = 1, AVERAGED = 2;
/** Pixels of the plot: it is the large one, and stands above the fold of a page 900 pixels high. */
const HEIGHT = 290;
const MANY = 120; // checks: more of them have smaller dots
const LOSS = ""; // the tab of the loss
/** Digits of "0.001234", and about those of "0.1234 to 0.5678": where an update is drawn, and where several are. */
export const roomOf = (rows: { merged: boolean }): number => (rows.merged ? 15 : 8);

/** The column of an overlaid curve that has its places on this axis: it lacks the first one of "past". */
const overlaid = (axis: AxisName): number | undefined => {
  const place = PLACE[axis];
  return place === undefined ? undefined : place - 1;
};

export class Loss {
  readonly card = new Card(words.title, words.hint, "loss");
  private readonly frame: Frame;
  private readonly past: PastRuns;
  private readonly overlay: Overlay;
  private readonly strip: LRPlot;
  private readonly metrics: Metrics;
  private readonly smoothing: Smoothing;
  private readonly measures: Measures;
  private readonly tools: { draw: () => void }[];
  private readonly subject: Subject;
  private tab: string;
  private keyed = "";

  constructor(
    private readonly store: Store,
    private readonly colours: PaletteOf,
    private readonly axis: FitAxis,
    hover: Hover,
  ) {
    this.past = new PastRuns(store, colours);
    this.overlay = new Overlay(store, colours, "fit", () => (this.tab === LOSS ? overlaid(axis.name) : undefined));
    this.strip = new LRPlot(store, colours, axis, hover);
    this.subject = this.describe();
    this.frame = new Frame(this.card.body, colours, this.subject, hover);
    this.smoothing = smoothing(store, "loss.smoothing", "auto", () => this.draw());
    this.metrics = new Metrics(store, colours, axis, this.card, () => this.smoothing.span);
    this.tab = store.viewOption("loss.tab", LOSS);
    this.measures = new Measures((tab) => this.choose(tab));
    const row = el("div", "wb-loss-row");
    this.card.body.before(row);
    row.append(this.card.body, this.measures.root);
    row.after(this.strip.root);
    this.card.foot.append(this.metrics.root);
    this.past.shown = store.viewOption("loss.previous", true);
    const rates = store.viewOption("loss.rates", false);
    this.strip.root.hidden = !rates;
    const across = axisChoice(axis);
    const log = logToggle(store, "loss.log", this.frame, "auto");
    this.tools = [across, log];
    this.card.tools.append(across.root, log.root, options(
      toggle(words.previous, words.previousTooltip, this.past.shown, (on) => {
        this.past.shown = on;
        store.setViewOption("loss.previous", on);
        this.draw();
      }),
      toggle(words.lr, words.ratesTooltip, rates, (on) => {
        this.strip.show(on);
        store.setViewOption("loss.rates", on);
      }),
      this.smoothing.root,
    ));
    plotTools(this.card, "loss", {
      svg: () => svgOf(this.frame, this.frame.what.name, colours()),
      csv: () => csvOf(axis.across.label, this.frame.what.layers()),
    }, this.frame);
    axis.listen(() => {
      this.frame.whole();
      this.draw();
    });
  }

  draw(): void {
    const rows = this.store.fit.rows;
    if (rows.count === 0 && this.store.mustStay(this.frame.plot?.root)) return;
    this.card.empty = rows.count === 0;
    if (rows.count === 0) return;
    this.past.read(this.axis.name);
    this.measure();
    this.key();
    this.frame.show(this.tab === LOSS ? this.subject : this.metrics.subject(this.tab));
    this.frame.draw();
    this.tools.forEach((tool) => tool.draw());
    this.strip.draw();
    this.metrics.draw(this.tab === LOSS ? null : this.tab);
    this.frame.what.read(this.frame.plot?.cursor.idx ?? null);
    this.overlay.draw(this.frame.plot);
  }

  /** The curve of another job comes or goes. */
  lay(): void {
    this.frame.redraw();
    this.overlay.draw(this.frame.plot);
  }

  redraw(): void {
    this.frame.redraw();
    this.strip.redraw();
  }

  destroy(): void {
    this.strip.destroy();
    this.frame.destroy();
  }

  /** The loss and each metric beside the plot. A metric that this fit lacks gives way to the loss. */
  private measure(): void {
    const { names } = this.metrics;
    if (!names.includes(this.tab)) this.tab = LOSS;
    const wanted = this.store.viewOption("loss.tab", LOSS);
    if (names.includes(wanted)) this.tab = wanted;
    const loss = this.store.fit.rows.line(SMOOTH);
    const own = { tab: LOSS, name: words.loss, value: number(loss.at(-1) ?? NaN), values: loss };
    this.measures.draw([own, ...names.map((name) => this.metrics.measure(name))], this.tab);
  }

  private choose(tab: string): void {
    this.tab = tab;
    this.store.setViewOption("loss.tab", tab);
    this.draw();
  }

  private key(): void {
    const { name: val = words.val, averaged = "" } = this.store.state.val ?? {};
    const past = this.past.keys();
    const checked = this.store.val.rows.count > 0 || this.store.jobRuns; // its place is kept for the first check
    const now = JSON.stringify([this.tab, checked && val, averaged, past, this.tab && this.metrics.keys(this.tab)]);
    if (now === this.keyed) return;
    this.keyed = now;
    if (this.tab !== LOSS) return this.card.setKey(this.metrics.keys(this.tab));
    this.card.setKey([
      { name: words.raw, swatch: "faint" },
      { name: words.smoothed, swatch: "line", room: 8 },
      ...(checked && val ? [{ name: val, swatch: "val", room: 8 }] : []),
      ...(averaged ? [{ name: averaged, swatch: "averaged", room: 8 }] : []),
      ...past,
    ]);
  }

  private describe(): Subject {
    const { store, axis } = this;
    return {
      name: words.title,
      places: () => axis.places(store.fit.rows.steps()),
      layers: () => this.layers(),
      across: () => axis.across,
      up: words.loss,
      fit: () => this.values(),
      read: (at) => this.read(at),
      words: () => this.card.placed(),
      step: (place) => axis.step(place),
      place: (step) => axis.place(step),
      height: HEIGHT,
    };
  }

  private layers(): Layer[] {
    const { store, axis } = this;
    const rows = store.fit.rows;
    const { faint, line, val, found, bad } = this.colours();
    const x = axis.places(rows.steps());
    const checks = store.val.rows;
    const at = axis.places(Array.from({ length: checks.count }, (_, i) => checks.at(i, 0)));
    const size = checks.count > MANY ? 1.5 : 3;
    const { name = words.val, averaged = "" } = store.state.val ?? {};
    const checked = (label: string, column: number, colour: string, shape: "circle" | "square"): Layer[] => [
      { name: "", kind: "line", x: at, y: checks.line(column), colour, width: 1.25, alpha: 0.7, joined: true },
      { name: label, kind: "dots", x: at, y: checks.line(column), colour, shape, size },
    ];
    return [
      ...this.past.layers(),
      ...this.overlay.layers(),
      { name: words.raw, kind: "area", x, y: rows.line(LOSS_HIGH), low: rows.line(LOSS_LOW), colour: faint },
      { name: words.smoothed, kind: "line", x, y: this.smooth(), colour: line, width: 2 },
      ...(name ? checked(name, VAL, val, "circle") : []),
      ...(averaged ? checked(averaged, AVERAGED, found, "square") : []),
      { name: "", kind: "ticks", x: x.filter((_, i) => rows.at(i, BAD) > 0), y: [], colour: bad },
      changes(store, axis, this.colours()),
    ];
  }

  private smooth(): Value[] {
    const rows = this.store.fit.rows;
    const { span } = this.smoothing;
    return span === "auto" ? rows.line(SMOOTH) : smoothed(rows.line(LOSS_MEAN), span, rows.width);
  }

  /** All of the smooth line and of validation, and 98% of the raw values: single spikes run off the plot. */
  private values(): Value[] {
    const { store, axis } = this;
    const rows = store.fit.rows;
    const high = rows.column(LOSS_HIGH);
    const end = axis.place(rows.step(rows.count - 1));
    return [
      ...this.smooth(), ...store.val.rows.line(VAL), ...store.val.rows.line(AVERAGED), quantile(high, 0.98), ...high.slice(0, 1),
      quantile(rows.column(LOSS_LOW), 0.005), ...this.past.values(end),
    ];
  }

  /** Under the cursor; without one, the last values. */
  private read(hovered: number | null): void {
    const { axis, card } = this;
    const rows = this.store.fit.rows;
    const i = hovered ?? rows.count - 1;
    const [low, high] = [rows.at(i, LOSS_LOW), rows.at(i, LOSS_HIGH)];
    const spread = rows.merged && low !== high;
    const place = axis.place(rows.step(i));
    card.setRoom(words.raw, roomOf(rows));
    card.setValue(words.raw, spread ? texts.range(number(low), number(high)) : number(high));
    card.setValue(words.smoothed, number(this.smooth()[i] ?? NaN));
    const lr = texts.plot.value(words.lr, rate(rows.at(i, RATE)));
    card.setAt(hovered === null ? lr : texts.list([axis.at(place), lr]));
    for (const line of this.past.lines) card.setValue(line.run, this.past.value(line, hovered === null ? null : place));
    card.setCaption(this.past.caption());
    const { name = words.val, averaged = "" } = this.store.state.val ?? {};
    [name, averaged].forEach((label, k) => card.setValue(label || "-", number(this.check(rows.origin + (i + 1) * rows.width, VAL + k))));
  }

  private check(step: number, column: number): number {
    const val = this.store.val.rows;
    let found = NaN;
    for (let i = 0; i < val.count && val.at(i, 0) <= step; i += 1) found = val.at(i, column);
    return found;
  }
}
