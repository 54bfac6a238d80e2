// Gradient norms, layer × time: colour is the norm on a logarithmic scale, red is not finite, blank is no value.

import { Card } from "./card";
import { gradient, viridis } from "./colormap";
import { el, say } from "./dom";
import { number, rate, steps as stepsWords } from "./format";
import { CANVAS_FONT, HEIGHT, type PaletteOf } from "./plot";
import type { Store } from "./store";

const TOP = 18, BOTTOM = 34, RIGHT = 14; // as the line plots beside it
const BAD: [number, number, number] = [229, 60, 60];
const MOST_DECADES = 8;

interface Frame {
  left: number;
  width: number;
  height: number;
}

export class Heat {
  readonly card = new Card("Gradient norm, layer × time", "During a fit the gradient norm of each layer appears here.", "heat");
  private readonly canvas = el("canvas", "", "", { tabindex: "0", role: "img" });
  private readonly low = el("span");
  private readonly high = el("span");
  private readonly readout = el("span", "wb-readout", "", { role: "status", "aria-live": "polite" });
  private readonly observer = new ResizeObserver(() => this.draw());
  private cursor: { row: number; layer: number } | null = null;
  private picked: number | null = null;

  constructor(
    private readonly store: Store,
    private readonly colours: PaletteOf,
    private readonly pick: (layer: number | null) => void,
  ) {
    const ramp = el("i", "wb-ramp");
    ramp.style.background = gradient();
    const legend = el("span", "wb-key-item");
    const bad = el("span", "wb-key-item", "not finite");
    bad.prepend(el("i", "wb-swatch wb-swatch-bad"));
    legend.append(this.low, ramp, this.high);
    this.card.tools.append(legend, bad);
    this.card.body.append(this.canvas, this.readout);
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => this.moveTo(null));
    this.canvas.addEventListener("click", () => this.choose());
    this.canvas.addEventListener("keydown", (event) => this.pressed(event));
    this.observer.observe(this.card.body);
  }

  destroy(): void {
    this.observer.disconnect();
  }

  draw(): void {
    const rows = this.store.heat.rows;
    const layers = this.store.state.layers ?? [];
    const some = rows.count > 0 && layers.length === rows.columns;
    this.card.empty = !some;
    const width = this.card.body.clientWidth;
    if (!some || width === 0) return;
    if (this.picked !== null && this.picked >= layers.length) this.choose(null);
    const ctx = this.sized(width);
    if (!ctx) return;
    const range = this.range();
    const frame = this.frame(ctx, layers, width);
    this.cells(ctx, frame, range);
    this.labels(ctx, frame, layers);
    this.axis(ctx, frame);
    this.marks(ctx, frame);
    say(this.low, rate(range[0]));
    say(this.high, rate(range[1]));
    this.canvas.setAttribute(
      "aria-label",
      `Gradient norms of ${layers.length} layers over ${stepsWords(rows.step(rows.count - 1))} updates, ` +
        `from ${number(range[0])} to ${number(range[1])}. Arrow keys read values, Enter draws one layer as a line.`,
    );
  }

  private sized(width: number): CanvasRenderingContext2D | null {
    const scale = devicePixelRatio;
    const [w, h] = [Math.round(width * scale), Math.round(HEIGHT * scale)];
    if (this.canvas.width !== w || this.canvas.height !== h) {
      this.canvas.width = w;
      this.canvas.height = h;
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${HEIGHT}px`;
    }
    const ctx = this.canvas.getContext("2d");
    ctx?.setTransform(scale, 0, 0, scale, 0, 0);
    ctx?.clearRect(0, 0, width, HEIGHT);
    return ctx;
  }

  /** The smallest and largest norm, eight decades apart at most: a gradient of zero must not flatten the rest. */
  private range(): [number, number] {
    const rows = this.store.heat.rows;
    let [low, high] = [Infinity, 0];
    for (let row = 0; row < rows.count; row += 1) {
      for (let layer = 0; layer < rows.columns; layer += 1) {
        const value = rows.at(row, layer);
        if (!(value > 0) || !Number.isFinite(value)) continue;
        low = Math.min(low, value);
        high = Math.max(high, value);
      }
    }
    if (high === 0) return [1e-3, 1];
    return [Math.max(low, high / 10 ** MOST_DECADES), high > low ? high : low * 1.01];
  }

  private frame(ctx: CanvasRenderingContext2D, layers: string[], width: number): Frame {
    ctx.font = CANVAS_FONT;
    const longest = Math.max(...layers.map((name) => ctx.measureText(name).width));
    const left = Math.ceil(Math.min(longest + 8, Math.max(56, 0.32 * width)));
    return { left, width: width - left - RIGHT, height: HEIGHT - TOP - BOTTOM };
  }

  /** One pixel a cell, stretched without smoothing. */
  private cells(ctx: CanvasRenderingContext2D, frame: Frame, [low, high]: [number, number]): void {
    const rows = this.store.heat.rows;
    const image = new ImageData(rows.count, rows.columns);
    const span = Math.log(high / low);
    for (let row = 0; row < rows.count; row += 1) {
      for (let layer = 0; layer < rows.columns; layer += 1) {
        const value = rows.at(row, layer);
        if (Number.isNaN(value)) continue;
        const share = value > 0 ? Math.log(value / low) / span : 0;
        const colour = Number.isFinite(value) ? viridis(share) : BAD;
        image.data.set([...colour, 255], 4 * (layer * rows.count + row));
      }
    }
    const small = new OffscreenCanvas(rows.count, rows.columns);
    small.getContext("2d")?.putImageData(image, 0, 0);
    ctx.imageSmoothingEnabled = false;
    ctx.drawImage(small, frame.left, TOP, frame.width, frame.height);
  }

  private labels(ctx: CanvasRenderingContext2D, frame: Frame, layers: string[]): void {
    const each = frame.height / layers.length;
    const every = Math.ceil(13 / each);
    ctx.textAlign = "right";
    ctx.textBaseline = "middle";
    layers.forEach((name, layer) => {
      const chosen = layer === this.picked;
      if (layer % every !== 0 && !chosen) return;
      if (!chosen && this.picked !== null && Math.abs(layer - this.picked) < every) return;
      ctx.fillStyle = chosen ? this.colours().found : this.colours().muted;
      ctx.fillText(elide(ctx, name, frame.left - 8), frame.left - 6, TOP + (layer + 0.5) * each);
    });
  }

  private axis(ctx: CanvasRenderingContext2D, frame: Frame): void {
    const rows = this.store.heat.rows;
    const end = rows.count * rows.width;
    const foot = TOP + frame.height;
    ctx.fillStyle = this.colours().muted;
    ctx.textAlign = "center";
    ctx.textBaseline = "top";
    for (const step of niceTicks(rows.origin, rows.origin + end, Math.floor(frame.width / 80))) {
      const x = frame.left + ((step - rows.origin + 0.5 * rows.width) / end) * frame.width;
      if (x > frame.left + frame.width) continue;
      ctx.fillText(stepsWords(step), Math.min(x, frame.left + frame.width - 8), foot + 5);
    }
    ctx.fillText("update", frame.left + frame.width / 2, foot + 20);
  }

  private marks(ctx: CanvasRenderingContext2D, frame: Frame): void {
    const rows = this.store.heat.rows;
    const each = frame.height / rows.columns;
    const outline = (layer: number, colour: string) => {
      ctx.strokeStyle = colour;
      ctx.lineWidth = 1.5;
      ctx.strokeRect(frame.left - 0.5, TOP + layer * each, frame.width + 1, each);
    };
    if (this.picked !== null) outline(this.picked, this.colours().found);
    if (!this.cursor) return;
    outline(this.cursor.layer, this.colours().ink);
    const x = frame.left + ((this.cursor.row + 0.5) / rows.count) * frame.width;
    ctx.beginPath();
    ctx.moveTo(x, TOP);
    ctx.lineTo(x, TOP + frame.height);
    ctx.stroke();
  }

  private point(event: PointerEvent): void {
    const rows = this.store.heat.rows;
    const ctx = this.canvas.getContext("2d");
    if (!ctx || rows.count === 0) return;
    const frame = this.frame(ctx, this.store.state.layers ?? [], this.card.body.clientWidth);
    const row = Math.floor(((event.offsetX - frame.left) / frame.width) * rows.count);
    const layer = Math.floor(((event.offsetY - TOP) / frame.height) * rows.columns);
    const inside = layer >= 0 && layer < rows.columns && row < rows.count;
    this.moveTo(inside ? { row: Math.max(row, 0), layer } : null);
  }

  private moveTo(cursor: { row: number; layer: number } | null): void {
    this.cursor = cursor;
    const rows = this.store.heat.rows;
    if (cursor) {
      const value = rows.at(cursor.row, cursor.layer);
      const words = Number.isNaN(value) ? "no value" : Number.isFinite(value) ? number(value) : "not finite";
      const name = this.store.state.layers?.[cursor.layer] ?? "";
      say(this.readout, `${name} · update ${stepsWords(Math.round(rows.step(cursor.row)))} · ${words}`);
    }
    this.readout.classList.toggle("wb-shown", cursor !== null);
    this.draw();
  }

  private choose(layer: number | null = this.cursor?.layer ?? null): void {
    this.picked = layer === this.picked ? null : layer;
    this.pick(this.picked);
    this.draw();
  }

  private pressed(event: KeyboardEvent): void {
    const rows = this.store.heat.rows;
    const at = this.cursor ?? { row: rows.count - 1, layer: 0 };
    const leap = event.shiftKey ? 10 : 1;
    const moves: Record<string, [number, number]> = {
      ArrowLeft: [-leap, 0], ArrowRight: [leap, 0], ArrowUp: [0, -1], ArrowDown: [0, 1],
    };
    const move = moves[event.key];
    if (move) {
      const clamp = (value: number, count: number) => Math.min(Math.max(value, 0), count - 1);
      this.moveTo({ row: clamp(at.row + move[0], rows.count), layer: clamp(at.layer + move[1], rows.columns) });
    } else if (event.key === "Enter" || event.key === " ") this.choose(at.layer);
    else if (event.key === "Escape") this.moveTo(null);
    else return;
    event.preventDefault();
    event.stopPropagation(); // the notebook has commands on these keys
  }
}

function elide(ctx: CanvasRenderingContext2D, name: string, room: number): string {
  if (ctx.measureText(name).width <= room) return name;
  let kept = name;
  // The end tells layers apart better than the start.
  while (kept.length > 1 && ctx.measureText(`…${kept}`).width > room) kept = kept.slice(1);
  return `…${kept}`;
}

function niceTicks(low: number, high: number, most: number): number[] {
  const rough = (high - low) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1e-9)));
  const step = Math.max(1, [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough) ?? rough);
  const out: number[] = [];
  for (let tick = Math.ceil(low / step) * step; tick < high; tick += step) out.push(tick);
  return out;
}
