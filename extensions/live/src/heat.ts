// Layer × time: colour is the gradient norm, or the update ratio, on a logarithmic scale; striped red is not finite, blank
// is no value. Of many layers the rows are modules, which can be opened.

import { Card } from "./card";
import { Cells, ends, type Frame, type Scale } from "./cells";
import { around, isDark, pixelOf, viridis } from "./colormap";
import { el, say } from "./dom";
import { number, steps as stepsWords } from "./format";
import { HeatBar, relative } from "./heatbar";
import { across, type Label, Margins } from "./margins";
import { HEIGHT, type PaletteOf } from "./plot";
import type { Store } from "./store";
import { pickColour } from "./theme";
import type { Row } from "./wire";

const TOP = 18, BOTTOM = 34, RIGHT = 14; // as the line plots beside it
const ROW = 8; // pixels of a row at least
const USUAL = 1e-3, AROUND = 100; // an update ratio, and how far from it the colours end

interface Cursor {
  row: number;
  layer: number;
}

export class Heat {
  readonly card = new Card("Gradients by layer", "During a fit the gradient norm of each layer appears here.", "heat");
  private readonly canvas = el("canvas", "", "", { tabindex: "0", role: "application", "aria-roledescription": "heat map" });
  private readonly words = el("p", "wb-heat-words");
  private readonly readout = el("span", "wb-readout", "", { role: "status", "aria-live": "polite" });
  private readonly broken = el("span", "wb-broken");
  private readonly bar: HeatBar;
  private readonly cells = new Cells();
  private readonly observer = new ResizeObserver(() => {
    this.width = this.card.body.clientWidth;
    this.draw();
  });
  private width = 0; // as last observed: asking in the middle of a frame would have the page laid out there and then
  private readonly margins = new Margins();
  private cursor: Cursor | null = null;

  constructor(
    private readonly store: Store,
    private readonly colours: PaletteOf,
  ) {
    this.bar = new HeatBar(store, this.card, this.canvas);
    this.card.body.append(this.bar.path, this.canvas, this.words, this.readout);
    this.card.foot.prepend(this.broken);
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => this.moveTo(null));
    this.canvas.addEventListener("click", (event) => this.clicked(event));
    this.canvas.addEventListener("keydown", (event) => this.pressed(event));
    this.observer.observe(this.card.body);
  }

  destroy(): void {
    this.observer.disconnect();
  }

  draw(): void {
    if (this.coming) return; // what is drawn stays until then: a canvas that is hidden meanwhile loses the focus
    const rows = this.store.heat.rows;
    this.card.empty = this.rows.length === 0;
    const some = rows.count > 0 && this.store.state.map !== undefined;
    this.canvas.hidden = !some;
    this.words.hidden = some;
    this.readout.hidden = !some;
    const { width } = this;
    if (this.rows.length === 0 || width === 0) return;
    if (some) this.cells.read(rows);
    const scale = this.scale();
    this.bar.draw(scale.map, [scale.low, scale.high]);
    this.captions();
    if (!some) return say(this.words, this.nothing());
    if (this.cursor) this.read(this.within(this.cursor.row, this.cursor.layer));
    const ctx = this.sized(width);
    if (!ctx) return;
    const frame = this.frame(ctx, width);
    this.cells.draw(ctx, frame, scale, this.colours().paper);
    this.margins.names(ctx, frame, this.labels());
    this.margins.updates(ctx, frame, rows, this.colours().muted);
    this.marks(ctx, frame);
    this.canvas.setAttribute("aria-label", this.description());
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
    const { ratios, progress } = this.store.state;
    if (this.ratios) return `${ratios?.words ?? ""}${ratios?.on ? "" : " Press “measure”."}`;
    const going = progress?.status === "running" || progress?.status === "paused";
    return going ? "The first norms come with the next updates." : "No norms of layers were recorded (track_grad_norm).";
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

  private description(): string {
    const rows = this.store.heat.rows;
    const what = this.ratios ? "Update ratios" : "Gradient norms";
    return `${what} of ${this.rows.length} rows of layers, up to update ${stepsWords(rows.step(rows.count - 1))}. ` +
      "Arrow keys read values, Enter opens a module or draws a layer as a line, Space draws a module as a line, Escape goes back.";
  }

  private sized(width: number): CanvasRenderingContext2D | null {
    const scale = devicePixelRatio;
    const height = TOP + BOTTOM + this.height();
    const [w, h] = [Math.round(width * scale), Math.round(height * scale)];
    if (this.canvas.width !== w || this.canvas.height !== h) {
      this.canvas.width = w;
      this.canvas.height = h;
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
    }
    const ctx = this.canvas.getContext("2d");
    ctx?.setTransform(scale, 0, 0, scale, 0, 0);
    ctx?.clearRect(0, 0, width, height);
    return ctx;
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
    this.firstBroken(ctx, frame, each);
    if (!this.cursor) return;
    outline(this.cursor.layer, this.colours().ink);
    const x = frame.left + ((this.cursor.row + 0.5) / this.store.heat.rows.count) * frame.width;
    ctx.beginPath();
    ctx.moveTo(x, frame.top);
    ctx.lineTo(x, frame.top + frame.height);
    ctx.stroke();
  }

  /** A pointer from above to where something was first not finite, and a ring round the layer, where one is known. */
  private firstBroken(ctx: CanvasRenderingContext2D, frame: Frame, each: number): void {
    const { broken } = this.store.state;
    if (!broken) return;
    const x = Math.min(Math.max(across(frame, this.store.heat.rows, broken.step), frame.left), frame.left + frame.width);
    ctx.fillStyle = this.colours().bad;
    ctx.strokeStyle = this.colours().paper;
    ctx.lineWidth = 1.5;
    ctx.beginPath();
    ctx.moveTo(x - 5, frame.top - 1);
    ctx.lineTo(x + 5, frame.top - 1);
    ctx.lineTo(x, frame.top + 7);
    ctx.closePath();
    ctx.stroke();
    ctx.fill();
    const { place } = broken;
    const layer = place === null ? -1 : this.rows.findIndex(([, first, end]) => first <= place && place < end);
    if (layer < 0) return;
    for (const [wide, colour] of [[4, this.colours().paper], [2, this.colours().bad]] as const) {
      ctx.lineWidth = wide;
      ctx.strokeStyle = colour;
      ctx.beginPath();
      ctx.arc(x, frame.top + (layer + 0.5) * each, 6, 0, 2 * Math.PI);
      ctx.stroke();
    }
  }

  private within(row: number, layer: number): Cursor {
    const clamp = (value: number, count: number) => Math.min(Math.max(value, 0), count - 1);
    return { row: clamp(row, this.store.heat.rows.count), layer: clamp(layer, this.rows.length) };
  }

  private point(event: PointerEvent | MouseEvent): void {
    const rows = this.store.heat.rows;
    const ctx = this.canvas.getContext("2d");
    if (!ctx || rows.count === 0) return;
    const frame = this.frame(ctx, this.width);
    const row = Math.floor(((event.offsetX - frame.left) / frame.width) * rows.count);
    const layer = Math.floor(((event.offsetY - frame.top) / frame.height) * rows.columns);
    const inside = layer >= 0 && layer < rows.columns && row < rows.count;
    this.moveTo(inside ? { row: Math.max(row, 0), layer } : null);
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
    const value = rows.at(cursor.row, cursor.layer);
    const words = Number.isNaN(value) ? "no value" : Number.isFinite(value) ? number(value) : "not finite";
    const largest = many(row) ? ` (largest of ${row[2] - row[1]})` : "";
    say(this.readout, `${this.named(row)} · ${words}${largest} · update ${stepsWords(Math.round(rows.step(cursor.row)))}`);
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
    const at = this.cursor ?? { row: last, layer: 0 };
    const leap = event.shiftKey ? 10 : 1;
    const moves: Record<string, [number, number]> = {
      ArrowLeft: [-leap, 0], ArrowRight: [leap, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], Home: [-last, 0], End: [last, 0],
    };
    const move = moves[event.key];
    const open = this.store.state.map?.path.length ?? 0;
    const chosen = event.key === "Enter" || event.key === " ";
    if (!this.cursor && (move || chosen)) this.moveTo(this.within(at.row, at.layer)); // the first key shows where one is
    else if (move) this.moveTo(this.within(at.row + move[0], at.layer + move[1]));
    else if (chosen) this.choose(at.layer, event.key === " ");
    else if (event.key === "Escape" && open) this.store.request("close_group", { depth: open - 1 });
    else if (event.key === "Escape" && this.cursor) this.moveTo(null);
    else return;
    event.preventDefault();
    event.stopPropagation(); // the notebook has commands on these keys
  }
}

function many([, first, end]: Row): boolean {
  return end - first > 1;
}
