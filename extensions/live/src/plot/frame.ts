// The base of every line plot: axes, zoom and pan, cursor, keyboard, full screen.

import { focusIn } from "../shared/dom";
import uPlot from "uplot";
import { tick } from "../shared/format";
import { byKeyboard } from "./keyboard";
import type { Across } from "./axis";
import type { Hover } from "./hover";
import { type Area, draw, type Layer, type Value } from "./layers";
import { CanvasRenderer } from "./renderers";
import { baseOptions, HEIGHT, logSplits, type PaletteOf, rangeOf } from "./scales";
import { texts } from "../texts";

/** What a plot is of. A card hands one over; the frame asks it whenever it draws. */
export interface Subject {
  /** Its name for a screen reader and for files. */
  name: string;
  /** The places where the cursor stops, from left to right. */
  places: () => ArrayLike<number>;
  layers: () => Layer[];
  across: () => Across & { log?: boolean; splits?: (min: number, max: number) => number[] };
  /** The vertical axis. Values of `fit` decide whether it is logarithmic by itself, and how far it reaches without a `range`. */
  up: string;
  fit: () => ArrayLike<Value>;
  range?: (log: boolean) => [number, number];
  /** The right axis, for layers whose scale is "y2". */
  right?: { label: string; words: (value: number) => string; fit: () => ArrayLike<Value>; log?: boolean };
  /** Called when the cursor has moved: the point under it, null for none. */
  read: (at: number | null) => void;
  /** What is under the cursor, in words. */
  words: () => string;
  /** From a place to an update, and back: plots that have these mark what lies under the mouse in the others. */
  step?: (place: number) => number;
  place?: (step: number) => number;
  /** Called with each new plot, and at the end of each drawing. */
  made?: (plot: uPlot) => void;
  drawn?: (plot: uPlot) => void;
  moved?: (plot: uPlot) => void;
  /** Layers of the saved picture alone: names that stand beside the canvas on the page. */
  saved?: () => Layer[];
  height?: number;
  above?: () => number;
  bare?: boolean;
}

/** How the vertical axis is: logarithmic where the range is wide, or as a person chose. */
export type LogChoice = "auto" | "on" | "off";
const WIDE = 50;
const STILL_WIDE = 25; // one that is at the edge does not change with every update
const AWAY = -10; // where uPlot takes the cursor for hidden
const RIGHT = 54; // pixels of the numbers at the right
const STEP = 0.5; // of what is seen is left by a key that zooms in

type Range = [number, number];

export class Frame {
  plot: uPlot | null = null;
  /** Called when a zoom begins or ends. */
  zoomed: () => void = () => {};
  private zoom: { x: Range; y: Range | null } | null = null;
  private shape = "";
  private wide = false;
  private led = false; // another plot moves the cursor
  private readonly observer: ResizeObserver;
  private readonly deaf: () => void;

  constructor(
    private readonly host: HTMLElement,
    private readonly colours: PaletteOf,
    private subject: Subject,
    private readonly hover: Hover | null = null,
    public log: LogChoice = "off",
  ) {
    host.classList.add("wb-plot");
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(host);
    this.deaf = hover?.listen(this, (step) => this.follow(step)) ?? (() => {});
  }

  get what(): Subject {
    return this.subject;
  }

  /** Show something else in the same place. */
  show(subject: Subject): void {
    if (subject === this.subject) return;
    this.subject = subject;
    this.whole();
  }

  /** Whether the vertical axis is logarithmic now. */
  get logarithmic(): boolean {
    if (this.log !== "auto") return this.log === "on";
    let [low, high] = [Infinity, -Infinity];
    const values = this.subject.fit();
    for (let i = 0; i < values.length; i += 1) {
      const value = values[i] as number;
      if (value === null || !Number.isFinite(value)) continue;
      [low, high] = [Math.min(low, value), Math.max(high, value)];
    }
    this.wide = low > 0 && high / low > (this.wide ? STILL_WIDE : WIDE);
    return this.wide;
  }

  get isZoomed(): boolean {
    return this.zoom !== null;
  }

  draw(): void {
    const places = this.subject.places();
    const data = [places, Array.from({ length: places.length }, () => null)] as unknown as uPlot.AlignedData;
    const across = this.subject.across();
    const log = this.logarithmic;
    const shape = JSON.stringify([this.subject.name, this.subject.up, across.label, across.words(1.5), log, across.log, this.subject.right?.label, this.subject.right?.log]);
    if (this.plot && shape === this.shape) {
      this.plot.setData(data);
      return;
    }
    const held = focusIn(this.plot?.over) !== null;
    this.plot?.destroy();
    this.shape = shape;
    this.make(data, log);
    if (held) this.plot?.over.focus();
  }

  /** The colours have changed. */
  redraw(): void {
    this.plot?.redraw(false);
  }

  /** Zoom out to the whole plot. */
  whole(): void {
    if (!this.zoom) return;
    this.zoom = null;
    this.zoomed();
    this.again();
  }

  destroy(): void {
    this.observer.disconnect();
    this.deaf();
    this.plot?.destroy();
  }

  /** Where values lie in the plot, in pixels of the page. */
  area(): Area {
    const plot = this.plot as uPlot;
    const [width, height] = [plot.bbox.width / devicePixelRatio, plot.bbox.height / devicePixelRatio];
    const log = { y: plot.scales["y"]?.distr === 3, y2: plot.scales["y2"]?.distr === 3 };
    return {
      width,
      height,
      x: (value) => plot.valToPos(value, "x"),
      y: (value, scale) => plot.valToPos(value, scale),
      shown: (value, scale): value is number => value != null && value < Infinity && value > (log[scale] ? 0 : -Infinity),
    };
  }

  // -- within ---------------------------------------------------------------------------------------------------------

  private make(data: uPlot.AlignedData, log: boolean): void {
    const { subject } = this;
    const across = subject.across();
    const base = baseOptions(this.colours, { x: across.label, y: log ? texts.axis.log(subject.up) : subject.up });
    const [x, y] = base.axes as [uPlot.Axis, uPlot.Axis];
    const scales: uPlot.Scales = {
      x: { time: false, distr: across.log ? 3 : 1, range: (_u, min, max) => this.rangeX(min, max) },
      y: { distr: log ? 3 : 1, range: () => this.rangeY(log) },
    };
    const xAxis: uPlot.Axis = { ...x, values: (_u, s) => s.map((v) => (v == null ? "" : this.subject.across().words(v))) };
    if (across.incrs) xAxis.incrs = across.incrs;
    if (across.log) Object.assign(xAxis, { splits: (_u: uPlot, _i: number, min: number, max: number) => (across.splits ?? logSplits)(min, max), filter: (_u: uPlot, s: number[]) => s });
    const axes: uPlot.Axis[] = [{ ...xAxis, show: !subject.bare }, vertical(y, log, tick)];
    const series: uPlot.Series[] = [{}, { scale: "y", paths: () => null, points: { show: false } }];
    const { right } = subject;
    if (right) {
      scales["y2"] = { distr: right.log ? 3 : 1, range: () => spanOf(right.fit(), right.log ?? false) };
      axes.push({ ...vertical(y, right.log ?? false, right.words), scale: "y2", side: 1, size: RIGHT, label: right.label, grid: { show: false } });
    }
    this.reserve();
    const options: uPlot.Options = {
      ...base,
      width: this.host.clientWidth || 300,
      height: Math.max(this.least, this.host.clientHeight),
      padding: [subject.above ?? 18, right ? 4 : 14, 0, 0],
      cursor: {
        ...base.cursor,
        drag: { x: true, y: true, uni: 25, setScale: false },
        bind: {
          dblclick: () => () => (this.whole(), null),
          mousedown: (u, _target, begin) => (event) => (this.zoom && event.shiftKey ? this.pan(u, event) : begin(event), null),
        },
      },
      scales,
      axes,
      series,
      hooks: {
        draw: [(u) => this.paint(u)],
        setCursor: [(u) => this.moved(u)],
        setSelect: [(u) => this.select(u)],
      },
    };
    this.plot = new uPlot(options, data, this.host);
    requestAnimationFrame(() => this.resize()); // what the card says below a new plot is not there yet
    byKeyboard(this.plot, subject.name, () => this.subject.words(), (key) => this.pressed(key));
    subject.made?.(this.plot);
  }

  private get least(): number {
    return (this.subject.height ?? HEIGHT) + Math.max(0, (this.subject.above?.() ?? 0) - 44);
  }

  private reserve(): void {
    this.host.style.minHeight = `${this.least}px`;
  }

  /** As large as its host, which grows with the cards beside it. `anew`: also where that has not changed, as the room above has. */
  resize(anew = false): void {
    const { plot } = this;
    if (anew) this.reserve();
    const { clientWidth: width, clientHeight: height } = this.host;
    if (plot && width > 0 && (anew || width !== plot.width || height !== plot.height)) plot.setSize({ width, height });
  }

  private paint(plot: uPlot): void {
    const { ctx, bbox } = plot;
    const { above = () => 18 } = this.subject;
    const scale = devicePixelRatio;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left - 4 * scale, 0, bbox.width + 8 * scale, bbox.top + bbox.height + 3 * scale);
    ctx.clip();
    ctx.translate(bbox.left, bbox.top);
    ctx.scale(scale, scale);
    const area = this.area();
    const pen = new CanvasRenderer(ctx, this.colours().paper);
    const layers = this.subject.layers();
    draw(pen, layers.filter((layer) => layer.kind === "rules"), area); // their names stand above the plot
    ctx.beginPath();
    ctx.rect(-4, -Math.min(4, above()), area.width + 8, area.height + 8);
    ctx.clip();
    draw(pen, layers.filter((layer) => layer.kind !== "rules"), area);
    ctx.restore();
    this.subject.drawn?.(plot);
    const { min = null, max = null } = plot.scales["x"] ?? {};
    Object.assign(plot.root.dataset, { from: String(min), to: String(max) }); // what is seen, for style sheets and tests
  }

  private rangeX(min: number | null, max: number | null): Range {
    if (this.zoom) return this.zoom.x;
    const own = this.subject.across().range?.();
    if (own) return own;
    if (min == null || max == null) return [0, 1];
    return max > min ? [min, max] : [min, min + 1];
  }

  private rangeY(log: boolean): Range {
    if (this.zoom?.y) return this.zoom.y;
    if (this.zoom) return spanOf(this.within(this.zoom.x), log);
    return this.subject.range?.(log) ?? spanOf(this.subject.fit(), log);
  }

  /** The values between two places. */
  private within([from, to]: Range): Value[] {
    const out: Value[] = [];
    for (const { x, y, low, scale = "y", kind, name } of this.subject.layers()) {
      if (scale !== "y" || kind === "rules" || kind === "ticks" || (!name && kind !== "line")) continue;
      for (let i = 0; i < x.length; i += 1) {
        const at = x[i] as number;
        if (at < from || at > to) continue;
        out.push(y[i] ?? null, low?.[i] ?? null);
      }
    }
    return out;
  }

  /** Compute the scales again and draw everything. */
  private again(): void {
    this.plot?.setData(this.plot.data);
  }

  // -- mouse and keys -------------------------------------------------------------------------------------------------

  private select(plot: uPlot): void {
    const { left, top, width, height } = plot.select;
    if (width < 3 && height < 3) return;
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    const x: Range = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
    const [whole, wide] = [height >= plot.over.clientHeight - 1, width >= plot.over.clientWidth - 1];
    const y: Range | null = whole ? null : [plot.posToVal(top + height, "y"), plot.posToVal(top, "y")];
    this.zoomTo(wide && this.zoom ? this.zoom.x : x, y);
  }

  private zoomTo(x: Range, y: Range | null): void {
    if (!(x[1] > x[0]) || (y && !(y[1] > y[0]))) return;
    const first = this.zoom === null;
    this.zoom = { x, y };
    if (first) this.zoomed();
    this.again();
  }

  /** Move what is seen by shares of its width and height. */
  private shift(right: number, up = 0): void {
    const { plot, zoom } = this;
    if (!plot || !zoom) return;
    const moved = (key: "x" | "y", by: number): Range => {
      const { min = 0, max = 1, distr } = plot.scales[key] ?? {};
      const [low, high] = [min as number, max as number];
      if (distr === 3) return [low * (high / low) ** by, high * (high / low) ** by];
      return [low + by * (high - low), high + by * (high - low)];
    };
    this.zoomTo(moved("x", right), zoom.y && moved("y", up));
  }

  private pan(plot: uPlot, event: MouseEvent): void {
    let [x, y] = [event.clientX, event.clientY];
    const drag = (e: MouseEvent) => {
      this.shift((x - e.clientX) / plot.over.clientWidth, (e.clientY - y) / plot.over.clientHeight);
      [x, y] = [e.clientX, e.clientY];
    };
    const end = () => {
      document.removeEventListener("mousemove", drag);
      document.removeEventListener("mouseup", end);
    };
    document.addEventListener("mousemove", drag);
    document.addEventListener("mouseup", end);
  }

  private pressed(key: string): boolean {
    const { plot } = this;
    const { min, max, distr } = plot?.scales["x"] ?? {};
    if (!plot || min == null || max == null) return false;
    if (key === "0" && this.zoom) this.whole();
    else if (key === "PageUp" || key === "PageDown") this.shift(key === "PageUp" ? -STEP : STEP);
    else if (key === "+" || key === "-") {
      const factor = key === "+" ? STEP : 1 / STEP;
      const [to, from] = distr === 3 ? [Math.log, Math.exp] : [(v: number) => v, (v: number) => v];
      const middle = to(plot.cursor.idx == null ? from((to(min) + to(max)) / 2) : (plot.data[0][plot.cursor.idx] as number));
      this.zoomTo([from(middle - (middle - to(min)) * factor), from(middle + (to(max) - middle) * factor)], null);
    } else return false;
    return true;
  }

  private moved(plot: uPlot): void {
    const at = plot.cursor.idx ?? null;
    this.subject.read(at);
    this.subject.moved?.(plot);
    if (!this.led && this.subject.step) this.hover?.move(this, at === null ? null : this.subject.step(plot.data[0][at] as number));
  }

  /** Another plot's cursor has moved to this update. */
  private follow(step: number | null): void {
    const { plot } = this;
    if (!plot || !this.subject.place || plot.data[0].length === 0) return;
    const at = step === null ? AWAY : plot.valToPos(this.subject.place(step), "x");
    this.led = true;
    const left = at >= 0 && at <= plot.over.clientWidth ? at : AWAY;
    plot.setCursor({ left, top: left === AWAY ? AWAY : 0 });
    this.led = false;
  }
}

function vertical(axis: uPlot.Axis, log: boolean, words: (value: number) => string): uPlot.Axis {
  const values: uPlot.Axis.Values = (_u, s) => s.map((v) => (v == null ? "" : words(v)));
  return log ? { ...axis, splits: (_u, _i, min, max) => logSplits(min, max), filter: (_u, s) => s, values } : { ...axis, values };
}

/** The smallest range with a little air that holds all values which have a place on the axis. */
export function spanOf(values: ArrayLike<Value>, log: boolean): Range {
  const there = Array.from(values).filter((value): value is number => value !== null && Number.isFinite(value) && (!log || value > 0));
  if (!log) return rangeOf(there);
  const [low, high] = there.length ? rangeOf(there.map(Math.log10)) : [-1, 1];
  return [10 ** low, 10 ** high];
}
