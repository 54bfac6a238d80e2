// Colours the cells of the heat map, one pixel each; only columns that have changed are coloured again.
// Layers that hardly or never get a gradient have a colour of their own, and no part in the scale of the others.
// Where there are more columns than pixels of the screen, several share one, which shows the largest: none is left out.

import { shade, type Ramp } from "./colormap";
import { Rows } from "../data/table";

export interface Frame {
  left: number;
  top: number;
  width: number;
  height: number;
}

/** Which values have which colours: those between `low` and `high`, on a logarithmic scale. */
export interface Scale {
  map: Ramp;
  low: number;
  high: number;
  bad: number;
  /** The colour of layers that hardly or never get a gradient. */
  none: number;
}

const MOST_DECADES = 8;
const NOTHING = 1e-6; // of the largest gradient of its update: what is left where sums cancel out; NOTHING in plots/training/grad_norm.py
const TAIL = 0.02; // of the values lie beyond each end of the colours
const SAMPLE = 8192; // values that the ends are taken from
const BINS = 24; // of each decade, when the ends are looked for
const HATCH = 5; // pixels from one stripe to the next

export class HeatMapCells {
  private rows = new Rows(-1, 1);
  private seen = 0;
  private clean = 0; // columns that are coloured as they should be
  private each = 1; // so many of them share a pixel
  private scale: Scale | null = null;
  private image = new ImageData(1, 1);
  private canvas = new OffscreenCanvas(1, 1);
  private ctx: OffscreenCanvasRenderingContext2D | null = null;
  // Of each column: how many values are not finite.
  private broken = new Uint16Array(0);
  /** Layers that had a gradient worth the name. */
  private alive = new Uint8Array(0);
  /** Of the other layers: the largest value so far; NaN: none was computed. */
  private most = new Float64Array(0);

  /** Take in what is new in `rows`. */
  read(rows: Rows): void {
    if (rows !== this.rows || rows.count > this.image.width || this.image.height !== rows.columns) this.make(rows);
    const from = rows.changedSince(this.seen);
    for (let row = from; row < rows.count; row += 1) {
      let [high, bad] = [0, 0];
      for (let layer = 0; layer < rows.columns; layer += 1) {
        const value = rows.at(row, layer);
        if (value === Infinity) bad += 1;
        else if (value > high) high = value;
      }
      for (let layer = 0; layer < rows.columns; layer += 1) {
        const value = rows.at(row, layer);
        if (value > NOTHING * high) this.revive(layer);
        if (!(value <= (this.most[layer] as number)) && !Number.isNaN(value)) this.most[layer] = value;
      }
      this.broken[row] = bad;
    }
    this.clean = Math.min(this.clean, from);
    this.seen = rows.edit;
  }

  /** Whether a layer has had hardly a gradient so far, or none. */
  dead(layer: number): boolean {
    return this.rows.count > 0 && !this.alive[layer];
  }

  /** The largest value of a layer so far, where it is dead; NaN: none was computed. */
  largestOfDead(layer: number): number {
    return this.most[layer] as number;
  }

  /** The 2nd and the 98th percentile of the positive values, about, layers without gradients left out; [Infinity, 0] where there is none. */
  range(): [number, number] {
    const { rows } = this;
    const counts = new Map<number, number>();
    let total = 0;
    const each = Math.max(1, Math.ceil((rows.count * rows.columns) / SAMPLE));
    for (let row = 0; row < rows.count; row += each) {
      for (let layer = 0; layer < rows.columns; layer += 1) {
        const value = rows.at(row, layer);
        if (!(value > 0) || value === Infinity || !this.alive[layer]) continue;
        const bin = Math.round(BINS * Math.log10(value));
        counts.set(bin, (counts.get(bin) ?? 0) + 1);
        total += 1;
      }
    }
    if (total === 0) return [Infinity, 0];
    const bins = [...counts].sort(([a], [b]) => a - b);
    let seen = 0;
    const upTo = (share: number) => (bins.find(([, count]) => (seen += count) > share * total) ?? (bins.at(-1) as [number, number]))[0];
    const low = upTo(TAIL);
    seen = 0;
    return [10 ** (low / BINS), 10 ** (upTo(1 - TAIL) / BINS)];
  }

  /** The cells as they are coloured, a pixel each. */
  get picture(): string {
    const { rows, each } = this;
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [Math.max(1, Math.floor(rows.count / each)), rows.columns];
    canvas.getContext("2d")?.drawImage(this.canvas, 0, 0);
    return canvas.toDataURL("image/png");
  }

  /** `bad`: the colour of what is not finite, `stripes` that of the stripes over it. */
  draw(ctx: CanvasRenderingContext2D, frame: Frame, scale: Scale, bad: string, stripes: string): void {
    const { rows } = this;
    const each = Math.max(1, Math.ceil(rows.count / Math.max(1, frame.width * devicePixelRatio)));
    if (each !== this.each || !same(scale, this.scale)) this.clean = 0;
    [this.each, this.scale] = [each, scale];
    if (this.clean < rows.count) this.colour(scale);
    ctx.imageSmoothingEnabled = false;
    ctx.drawImage(this.canvas, 0, 0, rows.count / each, rows.columns, frame.left, frame.top, frame.width, frame.height);
    this.hatch(ctx, frame, bad, stripes);
  }

  private revive(layer: number): void {
    if (this.alive[layer]) return;
    this.alive[layer] = 1;
    this.clean = 0; // all its cells have another colour now
  }

  private make(rows: Rows): void {
    const room = 2 ** Math.ceil(Math.log2(Math.max(64, rows.count)));
    this.rows = rows;
    this.image = new ImageData(room, rows.columns);
    this.canvas = new OffscreenCanvas(room, rows.columns);
    this.ctx = this.canvas.getContext("2d");
    this.alive = new Uint8Array(rows.columns);
    this.most = new Float64Array(rows.columns).fill(NaN);
    this.broken = new Uint16Array(room);
    this.seen = this.clean = 0;
  }

  private colour({ map, low, high, bad, none }: Scale): void {
    const { rows, image, each } = this;
    const [from, end] = [Math.floor(this.clean / each), Math.ceil(rows.count / each)];
    const pixels = new Uint32Array(image.data.buffer);
    const [floor, span] = [Math.log(low), Math.log(high / low)];
    for (let layer = 0; layer < rows.columns; layer += 1) {
      const line = layer * image.width;
      for (let at = from; at < end; at += 1) {
        const value = this.largest(at * each, layer);
        pixels[line + at] = !this.alive[layer] && value !== Infinity ? none : Number.isNaN(value) ? 0 : value === Infinity ? bad : shade(map, value > 0 ? (Math.log(value) - floor) / span : 0);
      }
    }
    this.ctx?.putImageData(image, 0, 0, from, 0, end - from, rows.columns);
    this.clean = rows.count;
  }

  /** Of the columns that share a pixel, the first of them `row`; NaN where none has a value. What is not finite is the largest. */
  private largest(row: number, layer: number): number {
    let most = this.rows.at(row, layer);
    for (let other = row + 1; other < Math.min(row + this.each, this.rows.count); other += 1) {
      const value = this.rows.at(other, layer);
      if (!(value <= most)) most = Number.isNaN(value) ? most : value;
    }
    return most;
  }

  /** Draw stripes over values that are not finite, so that more than a colour marks them; at least a pixel wide. */
  private hatch(ctx: CanvasRenderingContext2D, frame: Frame, bad: string, stripes: string): void {
    const { rows } = this;
    const [wide, tall] = [frame.width / rows.count, frame.height / rows.columns];
    ctx.save();
    ctx.beginPath();
    let some = false;
    for (let row = 0; row < rows.count; row += 1) {
      if (!this.broken[row]) continue;
      some = true;
      for (let layer = 0; layer < rows.columns; layer += 1) {
        if (rows.at(row, layer) === Infinity) ctx.rect(frame.left + row * wide, frame.top + layer * tall, Math.max(wide, 1), tall);
      }
    }
    if (some) {
      ctx.fillStyle = bad;
      ctx.fill();
      ctx.clip();
      ctx.beginPath();
      for (let at = -frame.height; at < frame.width; at += HATCH) {
        ctx.moveTo(frame.left + at, frame.top + frame.height);
        ctx.lineTo(frame.left + at + frame.height, frame.top);
      }
      ctx.strokeStyle = stripes;
      ctx.lineWidth = 1;
      ctx.stroke();
    }
    ctx.restore();
  }
}

/** The canvas in this size, empty, to be drawn on in pixels of the page. */
export function sized(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D | null {
  const scale = devicePixelRatio;
  const [w, h] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const ctx = canvas.getContext("2d");
  ctx?.setTransform(scale, 0, 0, scale, 0, 0);
  ctx?.clearRect(0, 0, width, height);
  return ctx;
}

function same(a: Scale, b: Scale | null): boolean {
  return b !== null && a.map === b.map && a.low === b.low && a.high === b.high && a.bad === b.bad && a.none === b.none;
}

/** Where the colours of norms between `low` and `high` begin and end: eight decades at most, as a gradient of zero must not flatten the rest. */
export function ends([low, high]: [number, number]): [number, number] {
  if (high === 0) return [1e-3, 1];
  const top = roundedUp(high);
  const bottom = Math.max(roundedDown(low), top / 10 ** MOST_DECADES);
  return [bottom < top ? bottom : top / 10, top]; // one value alone would have no place between them
}

/** To 1, 2 or 5 of a decade: a range that moves with every update would have every cell coloured again. */
function roundedUp(value: number): number {
  const power = 10 ** Math.floor(Math.log10(value));
  return ([1, 2, 5, 10].find((digit) => digit * power >= value * 0.999) ?? 10) * power;
}

function roundedDown(value: number): number {
  const power = 10 ** Math.floor(Math.log10(value));
  return ([5, 2, 1].find((digit) => digit * power <= value * 1.001) ?? 1) * power;
}
