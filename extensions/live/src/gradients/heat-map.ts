// The heat map of layers over time: gradient norms or update ratios, on a logarithmic scale. Values that are not finite are
// striped red, missing ones blank. Of many layers the rows are modules, which can be opened.

import { Card } from "../shared/card";
import type { FitAxis } from "../plot/axis";
import type { Hover } from "../plot/hover";
import { escaped } from "../plot/renderers";
import { sheet, table } from "../plot/save";
import { plotTools } from "../plot/toolbar";
import { markNonFinite } from "./non-finite-mark";
import { HeatMapCells, ends, type Frame, type Scale, sized } from "./heat-map-cells";
import { around, isDark, pixelOf, viridis } from "./colormap";
import { el, setText, focusIn } from "../shared/dom";
import { number, steps as stepsWords } from "../shared/format";
import { HeatMapToolbar, relative } from "./heat-map-toolbar";
import { across, type Label, HeatMapLabels } from "./heat-map-labels";
import { CANVAS_FONT, HEIGHT, type PaletteOf } from "../plot/scales";
import type { Store } from "../data/store";
import { pickColour } from "../shared/theme";
import type { Row } from "../data/messages";
import { texts } from "../texts";

const TOP = 18, BOTTOM = 34, RIGHT = 14; // as the line plots beside it
const ROW = 8; // pixels of a row at least
const OWN_KEYS = new Set(["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End", "Enter", " "]);
const { heatMap: words } = texts;
const WORD = 10; // pixels of a row that has room for the word
const CANCELS = /(bias|weight_g|\.original0)$/; // cancels() in plots/training/grad_norm.py
const USUAL = 1e-3, AROUND = 100; // an update ratio, and how far from it the colours end

/** A place on the map: the update, not its column, as columns are merged during the run. */
interface Cursor {
  step: number;
  layer: number;
}

export class HeatMap {
  readonly card = new Card(words.title, words.hint, "heat");
  private readonly canvas = el("canvas", "", "", { tabindex: "0", role: "application", "aria-roledescription": words.role });
  private readonly notice = el("p", "wb-heat-words");
  private readonly extent = el("p", "wb-extent", "", { id: `wb-${Math.random().toString(36).slice(2)}`, hidden: "" });
  private readonly readout = el("span", "wb-readout", "", { role: "status", "aria-live": "polite", "aria-atomic": "true" });
  private readonly name = el("span"); // of what lies under the cursor: it gives way where there is no room for all
  private readonly value = el("b");
  private readonly broken = el("span", "wb-broken");
  private readonly bar: HeatMapToolbar;
  private readonly cells = new HeatMapCells();
  private readonly resized = () => {
    [this.width, this.tall] = [this.card.body.clientWidth, this.card.body.clientHeight];
    this.draw();
  };
  private readonly observer = new ResizeObserver(this.resized);
  private tall = 0;
  private width = 0; // as last observed: asking in the middle of a frame would have the page laid out there and then
  private readonly margins = new HeatMapLabels();
  private cursor: Cursor | null = null;
  /** The update that lies under the cursor of another plot. */
  private elsewhere: number | null = null;
  private readonly deaf: () => void;

  constructor(
    private readonly store: Store,
    private readonly colours: PaletteOf,
    private readonly axis: FitAxis,
    private readonly hover: Hover,
  ) {
    this.bar = new HeatMapToolbar(store, this.card, this.canvas);
    this.readout.append(this.name, this.value);
    this.canvas.setAttribute("aria-describedby", this.extent.id);
    this.card.body.append(this.bar.path, this.canvas, this.notice, this.extent, this.readout);
    this.card.foot.prepend(this.broken);
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => this.moveTo(null));
    this.canvas.addEventListener("click", (event) => this.clicked(event));
    this.canvas.addEventListener("keydown", (event) => this.pressed(event));
    this.deaf = hover.listen(this, (step) => {
      this.elsewhere = step;
      this.draw();
    });
    axis.listen(() => this.draw());
    plotTools(this.card, "gradients-by-layer", { svg: () => this.svg(), csv: () => this.csv() });
    this.canvas.addEventListener("focus", () => setText(this.extent, this.described()));
    this.observer.observe(this.card.body);
    window.addEventListener("dppxchange", this.resized); // uPlot's word for a screen of other pixels
  }

  destroy(): void {
    this.deaf();
    this.observer.disconnect();
    window.removeEventListener("dppxchange", this.resized);
  }

  draw(): void {
    if (this.coming) return; // what is drawn stays until then: a canvas that is hidden meanwhile loses the focus
    const rows = this.store.heat.rows;
    const some = rows.count > 0 && this.store.state.map !== undefined;
    if (!some && this.store.mustStay(this.canvas)) return;
    const held = !some && focusIn(this.canvas) !== null;
    this.card.empty = this.rows.length === 0;
    this.canvas.hidden = !some;
    this.notice.hidden = some;
    this.readout.hidden = !some;
    if (held) this.card.tools.querySelector<HTMLElement>('[aria-pressed="true"]')?.focus();
    const { width } = this;
    if (this.rows.length === 0 || width === 0) return;
    if (some) this.cells.read(rows);
    const scale = this.scale();
    this.bar.draw(scale.map, [scale.low, scale.high], some && this.rows.some((_, layer) => this.cells.dead(layer)));
    this.captions();
    if (!some) return setText(this.notice, this.nothing());
    if (this.cursor) this.read(this.within(this.column(this.cursor), this.cursor.layer));
    this.card.body.style.minHeight = `${TOP + BOTTOM + this.least}px`;
    const ctx = sized(this.canvas, width, TOP + BOTTOM + this.height());
    if (!ctx) return;
    const frame = this.frame(ctx, width);
    this.cells.draw(ctx, frame, scale, this.colours().bad, this.colours().paper);
    this.margins.names(ctx, frame, this.labels());
    this.without(ctx, frame);
    this.margins.places(ctx, frame, rows, this.axis, this.colours().muted);
    this.marks(ctx, frame);
    this.describe();
  }

  /** Keep the name of the map constant: a screen reader repeats a changed one. Its extent is set when the run ends and on focus. */
  private describe(): void {
    const label = words.label(this.what);
    if (this.canvas.getAttribute("aria-label") !== label) this.canvas.setAttribute("aria-label", label);
    if (!this.store.jobRuns) setText(this.extent, this.described());
  }

  /** The rows of what was shown before lie here, and those of what is to be shown are on their way. */
  private get coming(): boolean {
    const { rows } = this.store.heat;
    const { map } = this.store.state;
    return rows.count > 0 && map !== undefined && rows.view !== map.view;
  }

  private get rows(): Row[] {
    return this.store.state.map?.rows ?? [];
  }

  private get ratios(): boolean {
    return this.store.state.map?.shown === "ratio";
  }

  private get what(): string {
    return this.ratios ? words.ratios : words.norms;
  }

  private scale(): Scale {
    const { bad, paper, none } = this.colours();
    const [red, grey] = [pixelOf(bad), pixelOf(none)];
    if (this.ratios) return { map: isDark(paper) ? around.dark : around.light, low: USUAL / AROUND, high: USUAL * AROUND, bad: red, none: grey };
    const [low, high] = ends(this.cells.range());
    return { map: viridis, low, high, bad: red, none: grey };
  }

  /** Why there is no map, and what to do. */
  private nothing(): string {
    const { ratios } = this.store.state;
    if (this.ratios) return ratios?.on ? ratios.words : words.pressMeasure(ratios?.words ?? "");
    return this.store.jobRuns ? words.first : words.notRecorded;
  }

  private captions(): void {
    const { map, broken } = this.store.state;
    setText(this.broken, broken ? words.broken(broken.words) : "");
    const said = [];
    if (this.rows.some(many)) said.push(this.ratios ? words.largestOfModule : words.largestOfModuleOpens);
    if (map && map.merged > 1) said.push(words.merged(map.merged));
    if (this.ratios && this.store.heat.rows.count > 0) said.push(words.oncePerSecond);
    this.card.setCaption(said.join(texts.separator));
  }

  private described(): string {
    const rows = this.store.heat.rows;
    if (rows.count === 0) return "";
    return words.extent(this.rows.length, stepsWords(Math.round(rows.step(rows.count - 1))));
  }

  private frame(ctx: CanvasRenderingContext2D, width: number): Frame {
    const left = this.margins.left(ctx, this.rows.map((row) => this.label(row)), width);
    return { left, top: TOP, width: width - left - RIGHT, height: this.height() };
  }

  private get least(): number {
    return Math.max(HEIGHT - TOP - BOTTOM, ROW * this.rows.length);
  }

  /** The rows fill the card, which is as high as those beside it. */
  private height(): number {
    return Math.max(this.least, this.tall - TOP - BOTTOM);
  }

  private label(row: Row): string {
    return this.named(row) + (many(row) ? " ▸" : "");
  }

  /** What a layer gets in place of a gradient. Behind a bias or a weight norm's scale a normalisation removes its effect: their gradients cancel. */
  private insteadOfGradient(layer: number): string {
    const most = this.cells.largestOfDead(layer);
    if (Number.isNaN(most)) return words.noGradient;
    if (!(most > 0)) return words.zero;
    return CANCELS.test(this.rows[layer]?.[0] ?? "") ? words.noise : words.hardly;
  }

  /** The word over the rows of layers that hardly or never get a gradient, where there is room. */
  private without(ctx: CanvasRenderingContext2D, frame: Frame): void {
    const each = frame.height / this.rows.length;
    if (each < WORD) return;
    ctx.fillStyle = this.colours().muted;
    ctx.textAlign = "left";
    ctx.textBaseline = "middle";
    ctx.font = CANVAS_FONT;
    this.rows.forEach((_, layer) => {
      if (this.cells.dead(layer)) ctx.fillText(this.insteadOfGradient(layer), frame.left + 6, frame.top + (layer + 0.5) * each);
    });
  }

  private svg(): string {
    const ctx = this.canvas.getContext("2d");
    if (!ctx) return "";
    const { muted, ink } = this.colours();
    const frame = this.frame(ctx, this.width);
    const [height, each] = [frame.top + frame.height + BOTTOM, frame.height / this.rows.length];
    const text = (line: string, x: number, y: number, anchor: string) =>
      `<text x="${x}" y="${y}" fill="${muted}" text-anchor="${anchor}">${escaped(line)}</text>`;
    const foot = frame.top + frame.height;
    const parts = [
      `<text x="10" y="12" fill="${ink}" font-size="13" font-weight="600">${escaped(words.saved(this.what))}</text>`,
      `<image x="${frame.left}" y="${frame.top}" width="${frame.width}" height="${frame.height}" preserveAspectRatio="none" image-rendering="pixelated" href="${this.cells.picture}"/>`,
      ...this.labels().map(({ text: name }, layer) => text(name, frame.left - 6, frame.top + (layer + 0.5) * each + 4, "end")),
      ...this.margins.ticks(frame, this.store.heat.rows, this.axis).map((tick) => text(tick.text, tick.x, foot + 15, "middle")),
      text(this.axis.across.label, frame.left + frame.width / 2, foot + 30, "middle"),
    ];
    return sheet(this.width, height, this.colours(), parts.join("\n"));
  }

  private csv(): string {
    const { rows } = this.store.heat;
    const lines = rows.steps().map((step, row) => [this.axis.place(step), ...this.rows.map((_, layer) => rows.at(row, layer))]);
    return table([[this.axis.across.label, ...this.rows.map(([name]) => name)], ...lines]);
  }

  /** Its name within the module that is open. */
  private named([name]: Row): string {
    return relative(name, this.store.state.map?.path.at(-1)?.[0]);
  }

  /** Which stroke of the norm plot this row has; -1: none. */
  private pickOf([, first, end]: Row): number {
    return (this.store.state.picks ?? []).find((pick) => pick.first === first && pick.end === end)?.stroke ?? -1;
  }

  private labels(): Label[] {
    const { muted } = this.colours();
    return this.rows.map((row) => {
      const pick = this.pickOf(row);
      return { text: this.label(row), colour: pick < 0 ? muted : pickColour(this.colours(), pick), picked: pick >= 0 };
    });
  }

  private marks(ctx: CanvasRenderingContext2D, frame: Frame): void {
    const each = frame.height / this.rows.length;
    const outline = (layer: number, colour: string) => {
      ctx.strokeStyle = colour;
      ctx.lineWidth = 1.5;
      ctx.strokeRect(frame.left - 0.5, frame.top + layer * each, frame.width + 1, each);
    };
    this.rows.forEach((row, layer) => {
      const pick = this.pickOf(row);
      if (pick >= 0) outline(layer, pickColour(this.colours(), pick));
    });
    const { rows } = this.store.heat;
    markNonFinite(ctx, frame, rows, this.rows, this.store.state.broken, this.colours());
    if (this.elsewhere !== null && !this.cursor) {
      ctx.strokeStyle = this.colours().ink;
      ctx.lineWidth = 1;
      const x = Math.min(Math.max(across(frame, rows, this.elsewhere), frame.left), frame.left + frame.width);
      ctx.strokeRect(x, frame.top, 0, frame.height);
    }
    if (!this.cursor) return;
    outline(this.cursor.layer, this.colours().ink);
    const x = frame.left + ((this.column(this.cursor) + 0.5) / rows.count) * frame.width;
    ctx.beginPath();
    ctx.moveTo(x, frame.top);
    ctx.lineTo(x, frame.top + frame.height);
    ctx.stroke();
  }

  private within(column: number, layer: number): Cursor {
    const { rows } = this.store.heat;
    return { step: rows.step(clamp(column, rows.count)), layer: clamp(layer, this.rows.length) };
  }

  private column({ step }: Cursor): number {
    const { rows } = this.store.heat;
    return clamp(Math.floor(rows.place(step)), rows.count);
  }

  private point(event: PointerEvent | MouseEvent): void {
    const rows = this.store.heat.rows;
    const ctx = this.canvas.getContext("2d");
    if (!ctx || rows.count === 0) return;
    const frame = this.frame(ctx, this.width);
    const row = Math.floor(((event.offsetX - frame.left) / frame.width) * rows.count);
    const layer = Math.floor(((event.offsetY - frame.top) / frame.height) * rows.columns);
    const inside = layer >= 0 && layer < rows.columns && row < rows.count;
    this.moveTo(inside ? this.within(row, layer) : null);
  }

  private moveTo(cursor: Cursor | null): void {
    this.cursor = cursor;
    this.hover.move(this, cursor?.step ?? null);
    this.readout.classList.toggle("wb-shown", cursor !== null);
    this.draw();
  }

  /** What lies under the cursor, in words. */
  private read(cursor: Cursor): void {
    this.cursor = cursor;
    const rows = this.store.heat.rows;
    const row = this.rows[cursor.layer];
    if (!row) return;
    const value = rows.at(this.column(cursor), cursor.layer);
    const dead = this.cells.dead(cursor.layer) && value !== Infinity;
    const none = dead ? this.insteadOfGradient(cursor.layer) : "";
    const shown = dead ? (value > 0 ? words.withValue(none, number(value)) : none) : Number.isNaN(value) ? words.noValue : Number.isFinite(value) ? number(value) : texts.notFinite;
    const largest = many(row) ? words.largestOf(row[2] - row[1]) : "";
    setText(this.name, row[0]);
    this.canvas.title = row[0];
    setText(this.value, words.reading(shown + largest, stepsWords(Math.round(cursor.step))));
  }

  private clicked(event: MouseEvent): void {
    this.point(event);
    if (this.cursor) this.choose(this.cursor.layer, event.shiftKey);
  }

  /** Open a module; draw a layer as a line, or no more (`asLine`: a module too). */
  private choose(layer: number, asLine: boolean): void {
    const row = this.rows[layer];
    if (!row || this.coming || this.store.state.still) return; // else it is another row than the one that is seen
    const [, first, end] = row;
    this.store.request(many(row) && !asLine ? "open_group" : "pick_layer", { first, end });
  }

  private pressed(event: KeyboardEvent): void {
    const last = this.store.heat.rows.count - 1;
    if (last < 0) return this.swallow(event, OWN_KEYS.has(event.key)); // those of the next fit are on their way
    const at = this.cursor ?? this.within(last, 0);
    const leap = event.shiftKey ? 10 : 1;
    const moves: Record<string, [number, number]> = {
      ArrowLeft: [-leap, 0], ArrowRight: [leap, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], Home: [-last, 0], End: [last, 0],
    };
    const move = moves[event.key];
    const open = this.store.state.map?.path.length ?? 0;
    const chosen = event.key === "Enter" || event.key === " ";
    if (!this.cursor && (move || chosen)) this.moveTo(at); // the first key shows where one is
    else if (move) this.moveTo(this.within(this.column(at) + move[0], at.layer + move[1]));
    else if (chosen) this.choose(at.layer, event.key === " ");
    else if (event.key === "Escape" && open) this.store.request("close_group", { depth: open - 1 });
    else if (event.key === "Escape" && this.cursor) this.moveTo(null);
    else return;
    this.swallow(event, true);
  }

  /** The notebook has commands on these keys. */
  private swallow(event: KeyboardEvent, own: boolean): void {
    if (!own) return;
    event.preventDefault();
    event.stopPropagation();
  }
}

function clamp(value: number, count: number): number {
  return Math.min(Math.max(value, 0), count - 1);
}

function many([, first, end]: Row): boolean {
  return end - first > 1;
}
