// Layer × time: colour is the gradient norm, or the update ratio, on a logarithmic scale; striped red is not finite, blank
// is no value. Of many layers the rows are modules, which can be opened.

import { Card } from "./card";
import { firstBroken } from "./broken";
import { Cells, ends, type Frame, type Scale, sized } from "./cells";
import { around, isDark, pixelOf, viridis } from "./colormap";
import { el, say } from "./dom";
import { number, steps as stepsWords } from "./format";
import { HeatBar, relative } from "./heatbar";
import { going, waits } from "./keyboard";
import { type Label, Margins } from "./margins";
import { HEIGHT, type PaletteOf } from "./plot";
import type { Store } from "./store";
import { pickColour } from "./theme";
import type { Row } from "./wire";

const TOP = 18, BOTTOM = 34, RIGHT = 14; // as the line plots beside it
const ROW = 8; // pixels of a row at least
const OWN_KEYS = new Set(["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End", "Enter", " "]);
const USUAL = 1e-3, AROUND = 100; // an update ratio, and how far from it the colours end

/** A place on the map. The update, and not its column: columns merge while it goes on. */
interface Cursor {
  step: number;
  layer: number;
}

export class Heat {
  readonly card = new Card("Gradients by layer", "During a fit the gradient norm of each layer appears here.", "heat");
  private readonly canvas = el("canvas", "", "", { tabindex: "0", role: "application", "aria-roledescription": "heat map" });
  private readonly words = el("p", "wb-heat-words");
  private readonly extent = el("p", "wb-extent", "", { id: `wb-${Math.random().toString(36).slice(2)}`, hidden: "" });
  private readonly readout = el("span", "wb-readout", "", { role: "status", "aria-live": "polite", "aria-atomic": "true" });
  private readonly name = el("span"); // of what lies under the cursor: it gives way where there is no room for all
  private readonly value = el("b");
  private readonly broken = el("span", "wb-broken");
  private readonly bar: HeatBar;
  private readonly cells = new Cells();
  private readonly resized = () => {
    this.width = this.card.body.clientWidth;
    this.draw();
  };
  private readonly observer = new ResizeObserver(this.resized);
  private width = 0; // as last observed: asking in the middle of a frame would have the page laid out there and then
  private readonly margins = new Margins();
  private cursor: Cursor | null = null;

  constructor(
    private readonly store: Store,
    private readonly colours: PaletteOf,
  ) {
    this.bar = new HeatBar(store, this.card, this.canvas);
    this.readout.append(this.name, this.value);
    this.canvas.setAttribute("aria-describedby", this.extent.id);
    this.card.body.append(this.bar.path, this.canvas, this.words, this.extent, this.readout);
    this.card.foot.prepend(this.broken);
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => this.moveTo(null));
    this.canvas.addEventListener("click", (event) => this.clicked(event));
    this.canvas.addEventListener("keydown", (event) => this.pressed(event));
    this.canvas.addEventListener("focus", () => say(this.extent, this.described()));
    this.observer.observe(this.card.body);
    window.addEventListener("dppxchange", this.resized); // uPlot's word for a screen of other pixels
  }

  destroy(): void {
    this.observer.disconnect();
    window.removeEventListener("dppxchange", this.resized);
  }

  draw(): void {
    if (this.coming) return; // what is drawn stays until then: a canvas that is hidden meanwhile loses the focus
    const rows = this.store.heat.rows;
    const some = rows.count > 0 && this.store.state.map !== undefined;
    if (!some && waits(this.store, this.canvas)) return;
    const held = !some && this.canvas === document.activeElement;
    this.card.empty = this.rows.length === 0;
    this.canvas.hidden = !some;
    this.words.hidden = some;
    this.readout.hidden = !some;
    if (held) this.card.tools.querySelector<HTMLElement>('[aria-pressed="true"]')?.focus();
    const { width } = this;
    if (this.rows.length === 0 || width === 0) return;
    if (some) this.cells.read(rows);
    const scale = this.scale();
    this.bar.draw(scale.map, [scale.low, scale.high]);
    this.captions();
    if (!some) return say(this.words, this.nothing());
    if (this.cursor) this.read(this.within(this.column(this.cursor), this.cursor.layer));
    const ctx = sized(this.canvas, width, TOP + BOTTOM + this.height());
    if (!ctx) return;
    const frame = this.frame(ctx, width);
    this.cells.draw(ctx, frame, scale, this.colours().bad, this.colours().paper);
    this.margins.names(ctx, frame, this.labels());
    this.margins.updates(ctx, frame, rows, this.colours().muted);
    this.marks(ctx, frame);
    this.describe();
  }

  /** A name that stays: a screen reader says a new one from the start. What moves stands apart, told at the end and on the way in. */
  private describe(): void {
    const label = `${this.ratios ? "Update ratios" : "Gradient norms"} of the layers. Arrow keys read values, ` +
      "Enter opens a module or draws a layer as a line, Space draws a module as a line, Escape goes back.";
    if (this.canvas.getAttribute("aria-label") !== label) this.canvas.setAttribute("aria-label", label);
    if (!going(this.store)) say(this.extent, this.described());
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

  private scale(): Scale {
    const { bad, paper } = this.colours();
    const red = pixelOf(bad);
    if (this.ratios) return { map: isDark(paper) ? around.dark : around.light, low: USUAL / AROUND, high: USUAL * AROUND, bad: red };
    const [low, high] = ends(this.cells.range());
    return { map: viridis, low, high, bad: red };
  }

  /** Why there is no map, and what to do. */
  private nothing(): string {
    const { ratios } = this.store.state;
    if (this.ratios) return `${ratios?.words ?? ""}${ratios?.on ? "" : " Press “measure”."}`;
    return going(this.store) ? "The first norms come with the next updates." : "No norms of layers were recorded (track_grad_norm).";
  }

  private captions(): void {
    const { map, broken } = this.store.state;
    say(this.broken, broken ? `✕ ${broken.words}` : "");
    const said = [];
    if (this.rows.some(many)) said.push(`▸ the largest of its layers${this.ratios ? "" : "; Enter or a click opens it"}`);
    if (map && map.merged > 1) said.push(`of more than 4000 layers, ${map.merged} neighbours each are kept together`);
    if (this.ratios && this.store.heat.rows.count > 0) said.push("measured about once a second");
    this.card.setCaption(said.join(" · "));
  }

  private described(): string {
    const rows = this.store.heat.rows;
    if (rows.count === 0) return "";
    return `${this.rows.length} rows of layers, up to update ${stepsWords(Math.round(rows.step(rows.count - 1)))}.`;
  }

  private frame(ctx: CanvasRenderingContext2D, width: number): Frame {
    const left = this.margins.left(ctx, this.rows.map((row) => this.label(row)), width);
    return { left, top: TOP, width: width - left - RIGHT, height: this.height() };
  }

  private height(): number {
    return Math.max(HEIGHT - TOP - BOTTOM, ROW * this.rows.length);
  }

  private label(row: Row): string {
    return this.named(row) + (many(row) ? " ▸" : "");
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
    firstBroken(ctx, frame, rows, this.rows, this.store.state.broken, this.colours());
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
    const words = Number.isNaN(value) ? "no value" : Number.isFinite(value) ? number(value) : "not finite";
    const largest = many(row) ? ` (largest of ${row[2] - row[1]})` : "";
    say(this.name, this.named(row));
    say(this.value, `\u00a0· ${words}${largest} · update ${stepsWords(Math.round(cursor.step))}`);
  }

  private clicked(event: MouseEvent): void {
    this.point(event);
    if (this.cursor) this.choose(this.cursor.layer, event.shiftKey);
  }

  /** Open a module; draw a layer as a line, or no more (`asLine`: a module too). */
  private choose(layer: number, asLine: boolean): void {
    const row = this.rows[layer];
    if (!row || this.coming) return; // else it is another row than the one that is seen
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
