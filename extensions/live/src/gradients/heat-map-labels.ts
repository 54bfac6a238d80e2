// Writes the names of the layers at the left of the heat map, and the numbers of its axis below.

import type { Frame } from "./heat-map-cells";
import type { FitAxis } from "../plot/axis";
import { CANVAS_FONT, niceTicks } from "../plot/scales";
import type { Rows } from "../data/table";

const LINE = 12; // pixels from one name to the next

export interface Label {
  text: string;
  colour: string;
  picked: boolean;
}

type Measuring = CanvasRenderingContext2D | OffscreenCanvasRenderingContext2D;

export class HeatMapLabels {
  private readonly widths = new Map<string, number>();
  private readonly named = new OffscreenCanvas(1, 1); // the names as they were drawn last: text is slow to draw
  private drawn = "";

  /** How wide the names are, up to a third of the card. */
  left(ctx: CanvasRenderingContext2D, names: string[], width: number): number {
    ctx.font = CANVAS_FONT;
    const longest = names.reduce((most, name) => Math.max(most, this.width(ctx, name)), 0);
    return Math.ceil(Math.min(longest + 8, Math.max(56, 0.32 * width)));
  }

  /** Every name there is room for; those of picked rows first. */
  names(ctx: CanvasRenderingContext2D, frame: Frame, labels: Label[]): void {
    const scale = devicePixelRatio;
    const height = frame.top + frame.height + LINE;
    const now = JSON.stringify([labels, frame, scale]);
    if (now !== this.drawn) {
      this.named.width = Math.ceil(frame.left * scale);
      this.named.height = Math.ceil(height * scale);
      const aside = this.named.getContext("2d");
      if (!aside) return;
      aside.setTransform(scale, 0, 0, scale, 0, 0);
      aside.font = CANVAS_FONT;
      this.write(aside, frame, labels);
      this.drawn = now;
    }
    ctx.drawImage(this.named, 0, 0, this.named.width / scale, this.named.height / scale);
  }

  private write(ctx: OffscreenCanvasRenderingContext2D, frame: Frame, labels: Label[]): void {
    const each = frame.height / labels.length;
    const every = Math.ceil(LINE / each);
    ctx.textAlign = "right";
    ctx.textBaseline = "middle";
    labels.forEach(({ text, colour, picked }, row) => {
      if (!picked) {
        if (row % every !== 0) return;
        for (let near = row - every + 1; near < row + every; near += 1) if (labels[near]?.picked) return;
      }
      ctx.fillStyle = colour;
      ctx.fillText(this.elided(ctx, text, frame.left - 8), frame.left - 6, frame.top + (row + 0.5) * each);
    });
  }

  /** Numbers of the fit's horizontal axis, each where its update lies. */
  places(ctx: CanvasRenderingContext2D, frame: Frame, rows: Rows, axis: FitAxis, colour: string): void {
    const foot = frame.top + frame.height;
    ctx.fillStyle = colour;
    ctx.textAlign = "center";
    ctx.textBaseline = "top";
    for (const { x, text } of this.ticks(frame, rows, axis)) ctx.fillText(text, Math.min(x, frame.left + frame.width - 8), foot + 5);
    ctx.fillText(axis.across.label, frame.left + frame.width / 2, foot + 20);
  }

  ticks(frame: Frame, rows: Rows, axis: FitAxis): { x: number; text: string }[] {
    const [low, high] = [axis.place(rows.origin), axis.place(rows.origin + rows.count * rows.width)];
    const { words, incrs } = axis.across;
    const most = Math.floor(frame.width / 80);
    const apart = incrs?.find((one) => one * most >= high - low);
    const ticks = apart ? Array.from({ length: most + 1 }, (_, i) => (Math.ceil(low / apart) + i) * apart) : niceTicks(low, high, most);
    return ticks.map((tick) => ({ x: across(frame, rows, axis.step(tick)), text: words(tick) })).filter(({ x }) => x >= frame.left && x <= frame.left + frame.width);
  }

  /** The end tells layers apart better than the start. */
  private elided(ctx: Measuring, name: string, room: number): string {
    if (this.width(ctx, name) <= room) return name;
    let [fits, wide] = [1, name.length]; // so many letters of the end
    while (wide - fits > 1) {
      const middle = (fits + wide) >> 1;
      if (this.width(ctx, `…${name.slice(-middle)}`) <= room) fits = middle;
      else wide = middle;
    }
    return `…${name.slice(-fits)}`;
  }

  private width(ctx: Measuring, text: string): number {
    let width = this.widths.get(text);
    if (width === undefined) {
      if (this.widths.size > 2000) this.widths.clear();
      this.widths.set(text, (width = ctx.measureText(text).width));
    }
    return width;
  }
}

/** Where an update lies from left to right. */
export function across(frame: Frame, rows: Rows, step: number): number {
  return frame.left + (rows.place(step) / rows.count) * frame.width;
}
