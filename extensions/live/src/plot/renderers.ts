// Two renderers with the same strokes: one draws on a canvas, the other writes SVG.

import { CANVAS_FONT } from "./scales";
import type { Shape } from "./layers";

export interface Stroke {
  colour: string;
  width: number;
  alpha?: number;
  dash?: number[];
}

type Point = [number, number];

export interface Renderer {
  line(points: Point[], style: Stroke): void;
  area(outlines: Point[][], colour: string, alpha: number): void;
  dot(shape: Shape, x: number, y: number, size: number, colour: string, alpha: number): void;
  /** A text from `x` to the right, on a line at `y`. */
  text(text: string, x: number, y: number, colour: string, at?: "start" | "middle" | "end"): void;
  measure(text: string): number;
}

/** The corners of a shape that has some. */
function corners(shape: Shape, x: number, y: number, r: number): Point[] {
  if (shape === "square") return [[x - r, y - r], [x + r, y - r], [x + r, y + r], [x - r, y + r]];
  return [[x, y - r], [x + r, y], [x, y + r], [x - r, y]];
}

export class CanvasRenderer implements Renderer {
  /** `ctx` is scaled to pixels of the page already. `paper`: the colour within rings. */
  constructor(
    private readonly ctx: CanvasRenderingContext2D,
    private readonly paper: string,
  ) {}

  line(points: Point[], { colour, width, alpha = 1, dash = [] }: Stroke): void {
    const { ctx } = this;
    ctx.strokeStyle = colour;
    ctx.lineWidth = width;
    ctx.globalAlpha = alpha;
    ctx.setLineDash(dash);
    ctx.beginPath();
    for (const [x, y] of points) ctx.lineTo(x, y);
    ctx.stroke();
    ctx.globalAlpha = 1;
    ctx.setLineDash([]);
  }

  area(outlines: Point[][], colour: string, alpha: number): void {
    const { ctx } = this;
    ctx.fillStyle = ctx.strokeStyle = colour;
    ctx.globalAlpha = alpha;
    ctx.lineWidth = 1;
    ctx.beginPath();
    for (const outline of outlines) {
      outline.forEach(([x, y], i) => (i ? ctx.lineTo(x, y) : ctx.moveTo(x, y)));
      ctx.closePath();
    }
    ctx.fill();
    ctx.stroke(); // where high and low are one, there is a line
    ctx.globalAlpha = 1;
  }

  dot(shape: Shape, x: number, y: number, size: number, colour: string, alpha: number): void {
    const { ctx } = this;
    ctx.globalAlpha = alpha;
    ctx.fillStyle = shape === "ring" ? this.paper : colour;
    ctx.strokeStyle = colour;
    ctx.lineWidth = 1.5;
    ctx.beginPath();
    if (shape === "circle" || shape === "ring") ctx.arc(x, y, size, 0, 2 * Math.PI);
    else for (const [cx, cy] of corners(shape, x, y, size)) ctx.lineTo(cx, cy);
    ctx.closePath();
    ctx.fill();
    if (shape === "ring") ctx.stroke();
    ctx.globalAlpha = 1;
  }

  text(text: string, x: number, y: number, colour: string, at: "start" | "middle" | "end" = "start"): void {
    const { ctx } = this;
    ctx.font = CANVAS_FONT;
    ctx.textAlign = at === "middle" ? "center" : at;
    ctx.textBaseline = "alphabetic";
    ctx.fillStyle = colour;
    ctx.fillText(text, x, y);
  }

  measure(text: string): number {
    this.ctx.font = CANVAS_FONT;
    return this.ctx.measureText(text).width;
  }
}

export class SvgRenderer implements Renderer {
  private readonly out: string[] = [];
  private readonly ruler = document.createElement("canvas").getContext("2d");

  constructor(private readonly paper: string) {}

  /** What was drawn so far. */
  get markup(): string {
    return this.out.join("\n");
  }

  raw(markup: string): void {
    this.out.push(markup);
  }

  line(points: Point[], { colour, width, alpha = 1, dash = [] }: Stroke): void {
    const dashes = dash.length ? ` stroke-dasharray="${dash.join(" ")}"` : "";
    const [paint, clear] = plain(colour);
    this.out.push(`<polyline points="${coordinates(points)}" fill="none" stroke="${paint}" stroke-width="${width}" stroke-opacity="${alpha * clear}"${dashes}/>`);
  }

  area(outlines: Point[][], colour: string, alpha: number): void {
    const path = outlines.map((outline) => `M${coordinates(outline).replaceAll(" ", "L")}Z`).join("");
    const [paint, clear] = plain(colour);
    if (path) this.out.push(`<path d="${path}" fill="${paint}" stroke="${paint}" fill-opacity="${alpha * clear}" stroke-opacity="${alpha * clear}"/>`);
  }

  dot(shape: Shape, x: number, y: number, size: number, colour: string, alpha: number): void {
    const [paint, clear] = plain(colour);
    const fill = `${shape === "ring" ? `fill="${plain(this.paper)[0]}" stroke="${paint}" stroke-width="1.5"` : `fill="${paint}"`} opacity="${alpha * clear}"`;
    if (shape === "circle" || shape === "ring") this.out.push(`<circle cx="${short(x)}" cy="${short(y)}" r="${size}" ${fill}/>`);
    else this.out.push(`<polygon points="${coordinates(corners(shape, x, y, size))}" ${fill}/>`);
  }

  text(text: string, x: number, y: number, colour: string, at: "start" | "middle" | "end" = "start"): void {
    this.out.push(`<text x="${short(x)}" y="${short(y)}" fill="${escaped(colour)}" text-anchor="${at}">${escaped(text)}</text>`);
  }

  measure(text: string): number {
    if (!this.ruler) return 6 * text.length;
    this.ruler.font = CANVAS_FONT;
    return this.ruler.measureText(text).width;
  }
}

function coordinates(points: Point[]): string {
  return points.map(([x, y]) => `${short(x)},${short(y)}`).join(" ");
}

function short(value: number): number {
  return Math.round(100 * value) / 100;
}

/** A colour of the style sheet as every program that reads SVG knows it, and its opacity. */
function plain(colour: string): [string, number] {
  const parts = colour.match(/^rgba?\(\s*(\d+)[\s,]+(\d+)[\s,]+(\d+)(?:\s*[/,]\s*([\d.]+)(%?))?\s*\)$/);
  if (!parts) return [escaped(colour), 1];
  const [, r, g, b, alpha, percent] = parts;
  return [`rgb(${r},${g},${b})`, alpha === undefined ? 1 : Number(alpha) / (percent ? 100 : 1)];
}

/** Text as it stands in XML. */
export function escaped(text: string): string {
  return text.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/g, "").replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");
}
