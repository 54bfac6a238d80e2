// Draws the layers of a plot (lines, areas, dots, marks), on the canvas and into saved pictures.

import type { Renderer } from "./renderers";

export type Value = number | null;
export type Shape = "circle" | "square" | "diamond" | "ring";

export interface Layer {
  /** As the key and the saved table name it; "": it is drawn, and is no data. */
  name: string;
  /**
   * line; steps: a line that holds each value until the next; area: from `low` to `y`; dots: with error bars from `low` to
   * `high` where there are any; rules: lines from top to bottom, `texts` above them; ticks: short lines at the foot.
   */
  kind: "line" | "steps" | "area" | "dots" | "rules" | "ticks";
  x: ArrayLike<number>;
  y: ArrayLike<Value>;
  low?: ArrayLike<Value>;
  high?: ArrayLike<Value>;
  texts?: string[];
  colour: string;
  width?: number;
  dash?: number[];
  alpha?: number;
  shape?: Shape;
  size?: number;
  /** The vertical axis: the left one, or the right one. */
  scale?: "y" | "y2";
  /** A line joins values on both sides of a gap. */
  joined?: boolean;
}

/** The plot's area in pixels of the page, and where values lie in it. */
export interface Area {
  width: number;
  height: number;
  x: (value: number) => number;
  y: (value: number, scale: "y" | "y2") => number;
  /** Whether a value has a place: nothing below zero has one on a logarithmic axis. */
  shown: (value: Value | undefined, scale: "y" | "y2") => value is number;
}

type Point = [number, number];
const GAP = 8; // pixels between two names above the plot

/** Draw `layers` into an area whose upper left corner is the pen's origin. */
export function draw(pen: Renderer, layers: Layer[], area: Area): void {
  rules(pen, layers.filter((layer) => layer.kind === "rules"), area);
  for (const layer of layers) {
    const { colour, alpha = 1 } = layer;
    if (layer.kind === "rules") continue;
    if (layer.kind === "ticks") {
      for (const x of inside(layer, area)) pen.line([[x, area.height - 8], [x, area.height]], { colour, alpha, width: 2 });
    } else if (layer.kind === "area") pen.area(band(layer, area), colour, alpha);
    else if (layer.kind === "dots") dots(pen, layer, area);
    else {
      const style = { colour, alpha, width: layer.width ?? 1.5, dash: layer.dash ?? [] };
      for (const run of runs(layer, area)) pen.line(run, style);
    }
  }
}

/** The stretches of a line between its gaps. */
function runs(layer: Layer, area: Area): Point[][] {
  const scale = layer.scale ?? "y";
  const out: Point[][] = [];
  let run: Point[] = [];
  for (let i = 0; i < layer.x.length; i += 1) {
    const value = layer.y[i];
    if (!area.shown(value, scale)) {
      const last = run.at(-1);
      if (!last || layer.joined) continue;
      if (layer.kind === "steps") run.push([area.x(layer.x[i] as number), last[1]]); // it holds until here
      out.push(run);
      run = [];
      continue;
    }
    const point: Point = [area.x(layer.x[i] as number), area.y(value, scale)];
    const before = run.at(-1);
    if (layer.kind === "steps" && before) run.push([point[0], before[1]]);
    run.push(point);
  }
  const last = run.at(-1);
  if (layer.kind === "steps" && last) run.push([area.width, last[1]]); // it holds on
  if (run.length) out.push(run);
  return out;
}

function band(layer: Layer, area: Area): Point[][] {
  const scale = layer.scale ?? "y";
  const out: Point[][] = [];
  let [over, under]: [Point[], Point[]] = [[], []];
  const close = () => {
    if (over.length) out.push([...over, ...under.reverse()]);
    [over, under] = [[], []];
  };
  for (let i = 0; i < layer.x.length; i += 1) {
    const [high, low] = [layer.y[i], layer.low?.[i]];
    if (!area.shown(high, scale) || !area.shown(low, scale)) {
      close();
      continue;
    }
    const x = area.x(layer.x[i] as number);
    over.push([x, area.y(high, scale)]);
    under.push([x, area.y(low, scale)]);
  }
  close();
  return out;
}

function dots(pen: Renderer, layer: Layer, area: Area): void {
  const scale = layer.scale ?? "y";
  const { colour, alpha = 1, shape = "circle", size = 3 } = layer;
  for (let i = 0; i < layer.x.length; i += 1) {
    const value = layer.y[i];
    if (!area.shown(value, scale)) continue;
    const [x, y] = [area.x(layer.x[i] as number), area.y(value, scale)];
    if (x < -size || x > area.width + size) continue;
    const [low, high] = [layer.low?.[i], layer.high?.[i]];
    if (area.shown(low, scale) && area.shown(high, scale)) {
      const [top, foot] = [area.y(high, scale), area.y(low, scale)];
      const style = { colour, alpha, width: 1.25 };
      pen.line([[x, top], [x, foot]], style);
      for (const end of [top, foot]) pen.line([[x - 3, end], [x + 3, end]], style);
    }
    pen.dot(shape, x, y, size, colour, alpha);
  }
}

function* inside(layer: Layer, area: Area): Generator<number> {
  for (let i = 0; i < layer.x.length; i += 1) {
    const x = area.x(layer.x[i] as number);
    if (x >= 0 && x <= area.width) yield x;
  }
}

/** A name stands over its line, or to the right of it where the one before takes that room, or is left out. */
function rules(pen: Renderer, layers: Layer[], area: Area): void {
  const names: { x: number; text: string; colour: string }[] = [];
  for (const { colour, alpha = 1, width = 1, dash = [2, 3], ...layer } of layers) {
    for (let i = 0; i < layer.x.length; i += 1) {
      const x = area.x(layer.x[i] as number);
      if (x < 0 || x > area.width) continue;
      pen.line([[x, 0], [x, area.height]], { colour, alpha, width, dash });
      const text = layer.texts?.[i] ?? "";
      if (text) names.push({ x, text, colour });
    }
  }
  let free = -Infinity;
  for (const { x, text, colour } of names.sort((a, b) => a.x - b.x)) {
    const width = pen.measure(text);
    const left = Math.max(0, free, Math.min(x - width / 2, area.width - width));
    if (left > x || (left > 0 && left + width > area.width)) continue;
    pen.text(text, left, -4, colour);
    free = left + width + GAP;
  }
}
