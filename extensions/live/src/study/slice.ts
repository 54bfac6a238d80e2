// One dimension of a space: its trials as dots, and its range, which can be changed.

import { el, setText } from "../shared/dom";
import { number, rate } from "../shared/format";
import type { StudyAxis, StudyTrial } from "../data/messages";
import { texts } from "../texts";
import { literal, type Selection, type StudyData } from "./data";

const { study: words } = texts;
const [WIDTH, HEIGHT] = [240, 112]; // of the drawing, whose width follows the card
const [TOP, FOOT] = [15, 15]; // the strips of the numbers at its edges
const OUTSIDE = 0.16; // of the width lies beyond each end of the range
const WIDE = 50; // values that span more are drawn by their logarithms
const STEP = 0.02; // of the range, by a key
const LEAP = 0.2;
const STILL = 4;
const OUTLIER = 4; // as many times the distance from the best to the middle one: what is worse is drawn at the edge

type Ends = [low: number, high: number];

export class Slice {
  readonly root: HTMLElement;
  private readonly svg = svg("svg", { class: "wb-slice-plot", preserveAspectRatio: "none", "aria-hidden": "true" });
  private readonly marks = svg("g");
  private readonly outside = [svg("rect", { class: "wb-slice-outside" }), svg("rect", { class: "wb-slice-outside" })];
  private readonly handles: HTMLElement[] = [];
  private readonly labels = [el("span", "wb-slice-end"), el("span", "wb-slice-end")];
  private readonly plot = el("div", "wb-slice-area");
  private readonly foot = el("div", "wb-slice-foot");
  private readonly height = [el("span", "wb-slice-high"), el("span", "wb-slice-low")];
  private draft: Ends | null = null;
  private dropped = new Set<number>(); // of a choice, the values that are left out
  private trials: StudyTrial[] = [];
  private held = false; // while a handle is dragged nothing moves under it
  private width = WIDTH;
  private view: Ends; // what the drawing spans, as places
  private readonly observer: ResizeObserver;

  constructor(private readonly axis: StudyAxis, private readonly index: number, private readonly data: StudyData, private readonly selection: Selection, private readonly changed: () => void) {
    const name = axis.relative ? words.timesFound(axis.name) : axis.name;
    this.root = el("figure", "wb-slice", "", { "aria-label": words.slice(axis.name) });
    this.view = this.span();
    this.svg.append(...this.outside, this.marks);
    this.plot.append(this.svg, ...this.height);
    if (!axis.choices.length && axis.edits) for (const end of [0, 1] as const) this.plot.append(this.handle(end));
    if (axis.choices.length) this.foot.append(...axis.choices.map((text, i) => this.choice(text, i)));
    else this.foot.append(...this.labels);
    this.root.append(el("figcaption", "", name, { title: name }), this.plot, this.foot);
    this.plot.addEventListener("pointerdown", (event) => this.brush(event));
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.plot);
  }

  destroy(): void {
    this.observer.disconnect();
  }

  /** What `study.space` is given for this dimension; null: it stays as it is. */
  get argument(): string | null {
    const { axis } = this;
    if (axis.choices.length) {
      if (!this.dropped.size) return null;
      return `${axis.name}=[${axis.codes.filter((_, i) => !this.dropped.has(i)).join(", ")}]`;
    }
    if (!this.draft) return null;
    const [low, high] = this.draft.map((value) => literal(value, axis.whole));
    const same = low === literal(axis.low!, axis.whole) && high === literal(axis.high!, axis.whole);
    return same || low === high ? null : `${axis.name}=(${low}, ${high})`;
  }

  forget(): void {
    this.draft = null;
    this.dropped.clear();
    this.draw(this.trials);
  }

  draw(trials: StudyTrial[]): void {
    this.trials = trials;
    if (!this.held) this.view = this.span();
    this.dots();
    this.ends();
  }

  // -- places: a value, or its logarithm ----------------------------------------------------------

  private place(value: number): number {
    return this.axis.log ? Math.log10(value) : value;
  }

  private value(place: number): number {
    const value = this.axis.log ? 10 ** place : place;
    return this.axis.whole ? Math.max(1, Math.round(value)) : Number(value.toPrecision(2));
  }

  private get range(): Ends {
    return this.draft ?? [this.axis.low ?? 0, this.axis.high ?? 1];
  }

  /** The range, and some room beyond both ends. */
  private span(): Ends {
    if (this.axis.choices.length) return [-0.5, this.axis.choices.length - 0.5];
    const [low, high] = this.range.map((value) => this.place(value)) as Ends;
    const ends = [low, high, this.place(this.axis.low ?? 0), this.place(this.axis.high ?? 1)];
    const tried = this.trials.flatMap((trial) => trial.at[this.index] ?? []).map((value) => this.place(value));
    const [from, to] = [Math.min(...ends, ...tried), Math.max(...ends, ...tried)];
    const room = ((to - from || 1) * OUTSIDE) / (1 - 2 * OUTSIDE);
    return [from - room, to + room];
  }

  private x(place: number): number {
    const [from, to] = this.view;
    return ((place - from) / (to - from)) * this.width;
  }

  private at(clientX: number): number {
    const box = this.plot.getBoundingClientRect();
    const [from, to] = this.view;
    return from + (Math.min(Math.max(clientX - box.left, 0), box.width) / box.width) * (to - from);
  }

  // -- drawing ----------------------------------------------------------------------------------

  private resize(): void {
    const { clientWidth } = this.plot;
    if (!clientWidth || clientWidth === this.width) return;
    this.width = clientWidth;
    this.draw(this.trials);
  }

  private dots(): void {
    const { best, baseline } = this.data.head!;
    const [low, high, log] = this.heights();
    const y = (value: number) => {
      const [a, b, c] = log ? [low, high, value].map(Math.log10) as [number, number, number] : [low, high, value];
      return TOP + (1 - Math.min(Math.max((c - a) / (b - a || 1), 0), 1)) * (HEIGHT - TOP - FOOT);
    };
    const order = [...this.trials].sort((a, b) => this.weight(a) - this.weight(b));
    this.marks.replaceChildren(...order.flatMap((trial) => {
      const at = trial.at[this.index];
      if (at == null) return [];
      const x = this.x(this.axis.choices.length ? at + jitter(trial.number) : this.place(at));
      const kind = trial.number === this.selection.trial ? "selected" : trial.number === best ? "best" : trial.number === baseline ? "baseline" : trial.whole ? "whole" : "shorter";
      if (trial.infeasible) return [cross(x, this.data.head!.mode === "min" ? TOP : HEIGHT - FOOT, trial.number === this.selection.trial)];
      if (trial.value === null) return [];
      const mark = svg("circle", { class: `wb-slice-dot wb-slice-${kind}`, cx: String(x), cy: String(y(trial.value)), r: kind === "shorter" ? "2.5" : kind === "whole" ? "3.2" : "4.5" });
      const title = svg("title");
      title.textContent = words.atTrial(trial.number, number(trial.value));
      mark.append(title);
      return [mark];
    }));
    setText(this.height[0] as HTMLElement, Number.isFinite(high) ? number(high) : "");
    setText(this.height[1] as HTMLElement, Number.isFinite(low) ? number(low) : "");
  }

  private weight(trial: StudyTrial): number {
    if (trial.number === this.selection.trial) return 4;
    if (trial.number === this.data.head!.best) return 3;
    if (trial.number === this.data.head!.baseline) return 2;
    return Number(trial.whole);
  }

  /** From where to where values are drawn, and whether by their logarithms. */
  private heights(): [number, number, boolean] {
    const values = this.trials.flatMap((trial) => (trial.value === null ? [] : [trial.value])).sort((a, b) => this.data.better(a, b));
    if (!values.length) return [NaN, NaN, false];
    const [best, middle, worst] = [values[0]!, values[Math.floor(values.length / 2)]!, values.at(-1)!];
    const far = best + OUTLIER * (middle - best);
    const edge = values.length > 5 && this.data.better(far, worst) < 0 && far !== best ? far : worst;
    const [low, high] = best < edge ? [best, edge] : [edge, best];
    return [low, high, low > 0 && high / low > WIDE];
  }

  private ends(): void {
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
    if (this.axis.choices.length) {
      this.outside.forEach((part) => part.setAttribute("width", "0"));
      this.foot.querySelectorAll("button").forEach((button, i) => button.setAttribute("aria-pressed", String(!this.dropped.has(i))));
      return;
    }
    const [left, right] = this.range.map((value) => this.x(this.place(value))) as Ends;
    this.shade(0, 0, left);
    this.shade(1, right, this.width);
    this.range.forEach((value, end) => {
      const [text, x] = [this.axis.whole ? String(value) : rate(value), [left, right][end] as number];
      const label = this.labels[end] as HTMLElement;
      setText(label, text);
      label.style.left = `${(100 * x) / this.width}%`;
      const handle = this.handles[end];
      if (!handle) return;
      handle.style.left = `${(100 * x) / this.width}%`;
      handle.setAttribute("aria-valuenow", String(value));
      handle.setAttribute("aria-valuetext", text);
    });
    this.root.toggleAttribute("data-draft", this.argument !== null);
  }

  private shade(part: number, from: number, to: number): void {
    const rect = this.outside[part] as SVGElement;
    rect.setAttribute("x", String(Math.max(0, from)));
    rect.setAttribute("width", String(Math.max(0, to - from)));
    rect.setAttribute("height", String(HEIGHT));
  }

  // -- changing the range -------------------------------------------------------------------------

  private handle(end: 0 | 1): HTMLElement {
    const label = end ? words.upper(this.axis.name) : words.lower(this.axis.name);
    const handle = el("div", "wb-slice-handle", "", { role: "slider", tabindex: "0", "aria-label": label, title: texts.plot.dragHandle(label) });
    handle.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      event.preventDefault();
      event.stopPropagation(); // no brush begins here
      handle.focus();
      handle.setPointerCapture(event.pointerId);
      this.held = true;
      const drag = (e: PointerEvent) => this.move(end, this.value(this.at(e.clientX)));
      handle.addEventListener("pointermove", drag);
      handle.addEventListener("lostpointercapture", () => {
        handle.removeEventListener("pointermove", drag);
        this.held = false;
        this.draw(this.trials); // there is room beyond the new end again
      }, { once: true });
    });
    handle.addEventListener("keydown", (event) => this.pressed(end, event));
    this.handles.push(handle);
    return handle;
  }

  private pressed(end: 0 | 1, event: KeyboardEvent): void {
    const leap = event.shiftKey || event.key.startsWith("Page") ? LEAP : STEP;
    const direction = ["ArrowRight", "ArrowUp", "PageUp"].includes(event.key) ? 1 : ["ArrowLeft", "ArrowDown", "PageDown"].includes(event.key) ? -1 : 0;
    if (event.key === "Escape") this.forget();
    else if (!direction) return;
    else {
      const [low, high] = [this.place(this.axis.low!), this.place(this.axis.high!)];
      const before = this.range[end] as number;
      const least = this.axis.whole ? 1 : 0;
      let to = this.value(this.place(before) + direction * leap * (high - low));
      if (Math.abs(to - before) < least) to = before + direction * least;
      this.move(end, to);
      this.draw(this.trials);
    }
    event.preventDefault();
    event.stopPropagation(); // the notebook has commands on the arrow keys
    this.changed();
  }

  private move(end: 0 | 1, to: number): void {
    const ends: Ends = [...this.range];
    const other = ends[1 - end] as number;
    const fits = end ? to > other : to < other;
    if (!fits || (this.axis.log && to <= 0) || (this.axis.low! >= 0 && to < 0)) return;
    ends[end] = to;
    this.draft = ends;
    this.ends();
    this.changed();
  }

  /** Drag over the plot: the range from here to there, within what it is; a click selects the trial under it. */
  private brush(event: PointerEvent): void {
    if (event.button !== 0) return;
    event.preventDefault();
    const from = event.clientX;
    const edits = this.axis.edits && !this.axis.choices.length;
    this.plot.setPointerCapture(event.pointerId);
    const drag = (e: PointerEvent) => {
      if (!edits || Math.abs(e.clientX - from) <= STILL) return;
      const [a, b] = [this.at(Math.min(from, e.clientX)), this.at(Math.max(from, e.clientX))];
      const [low, high] = [this.place(this.axis.low!), this.place(this.axis.high!)];
      const ends: Ends = [this.value(Math.max(a, low)), this.value(Math.min(b, high))];
      if (ends[0] >= ends[1]) return;
      this.draft = ends;
      this.ends();
      this.changed();
    };
    this.plot.addEventListener("pointermove", drag);
    this.plot.addEventListener("lostpointercapture", (e) => {
      this.plot.removeEventListener("pointermove", drag);
      if (Math.abs(e.clientX - from) <= STILL) this.select(e);
    }, { once: true });
  }

  private select(event: PointerEvent): void {
    const box = this.plot.getBoundingClientRect();
    let [closest, reach]: [number | null, number] = [null, 16];
    const order = [...this.trials].sort((a, b) => this.weight(a) - this.weight(b)).filter((trial) => trial.at[this.index] != null && (trial.infeasible || trial.value !== null));
    [...this.marks.children].forEach((mark, i) => {
      const at = mark.getBoundingClientRect();
      const distance = Math.hypot(at.left + at.width / 2 - event.clientX, at.top + at.height / 2 - event.clientY);
      if (distance < reach && box.width) [closest, reach] = [order[i]!.number, distance];
    });
    if (closest !== null) this.selection.choose(closest);
  }

  /** A value of a choice: a click leaves it out, or takes it in again. */
  private choice(text: string, i: number): HTMLElement {
    const button = el("button", "wb-slice-choice", text, { type: "button", "aria-pressed": "true", title: words.leaveOut(text) });
    button.disabled = !this.axis.edits;
    button.addEventListener("click", () => {
      if (this.dropped.has(i)) this.dropped.delete(i);
      else if (this.dropped.size < this.axis.choices.length - 1) this.dropped.add(i);
      this.ends();
      this.changed();
    });
    return button;
  }
}

/** Trials of one value of a choice lie beside each other, each always at its place. */
function jitter(trial: number): number {
  return ((trial * 0.618034) % 1) * 0.5 - 0.25;
}

function cross(x: number, y: number, selected: boolean): SVGElement {
  return svg("path", { class: `wb-slice-cross${selected ? " wb-slice-selected" : ""}`, d: `M${x - 3.5} ${y - 3.5}L${x + 3.5} ${y + 3.5}M${x + 3.5} ${y - 3.5}L${x - 3.5} ${y + 3.5}` });
}

function svg(tag: string, attributes: Record<string, string> = {}): SVGElement {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}
