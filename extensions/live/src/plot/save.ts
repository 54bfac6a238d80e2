// Saves a plot: as SVG and PNG from the layers that the canvas draws, and its numbers as CSV.

import type { Frame } from "./frame";
import { draw, type Layer, type Value } from "./layers";
import { escaped, SvgRenderer } from "./renderers";
import type { Palette } from "../shared/theme";
import { texts } from "../texts";

const HEAD = 46; // pixels for the title and the key
const FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif";
const SHARPER = 2; // pixels of a PNG for one of the page

/** What can be saved of a plot. */
export interface Saved {
  svg: () => string;
  csv: () => string;
}

/** `title`: stands above it. `key`: names and colours of its series. */
export function svgOf(frame: Frame, title: string, palette: Palette): string {
  const plot = frame.plot;
  if (!plot) return "";
  const area = frame.area();
  const scale = devicePixelRatio;
  const [left, top] = [plot.bbox.left / scale, plot.bbox.top / scale];
  const pen = new SvgRenderer(palette.paper);
  const axes = plot.axes as unknown as { _splits?: (number | null)[]; _values?: (string | null)[]; label?: string; show?: boolean; side?: number; scale?: string }[];
  for (const { _splits: splits = [], _values: values = [], label = "", show, side, scale: of = "x" } of axes) {
    if (show === false) continue;
    const flat = of === "x";
    splits.forEach((at, i) => {
      const text = values[i];
      if (at == null || !text) return;
      const place = flat ? area.x(at) : area.y(at, of as "y" | "y2");
      if (place < -1 || place > (flat ? area.width : area.height) + 1) return;
      if (side !== 1) pen.line(flat ? [[place, 0], [place, area.height]] : [[0, place], [area.width, place]], { colour: palette.grid, width: 1 });
      if (flat) pen.text(text, place, area.height + 15, palette.muted, "middle");
      else pen.text(text, side === 1 ? area.width + 6 : -6, place + 4, palette.muted, side === 1 ? "start" : "end");
    });
    if (flat) pen.text(label, area.width / 2, area.height + 31, palette.muted, "middle");
    else {
      const x = side === 1 ? plot.width - left - 4 : 10 - left;
      pen.raw(`<text transform="translate(${x} ${area.height / 2}) rotate(-90)" fill="${escaped(palette.muted)}" text-anchor="middle">${escaped(label)}</text>`);
    }
  }
  const layers = [...frame.what.layers(), ...(frame.what.saved?.() ?? [])];
  const clip = `wb-clip-${Math.random().toString(36).slice(2)}`;
  draw(pen, layers.filter((layer) => layer.kind === "rules"), area);
  pen.raw(`<clipPath id="${clip}"><rect x="-4" y="-4" width="${area.width + 8}" height="${area.height + 8}"/></clipPath><g clip-path="url(#${clip})">`);
  draw(pen, layers.filter((layer) => layer.kind !== "rules"), area);
  pen.raw("</g>");
  return sheet(plot.width, plot.height + HEAD, palette, head(title, layers, palette) + `<g transform="translate(${left} ${top + HEAD})">\n${pen.markup}\n</g>`);
}

/** A whole picture, on the card's colour. */
export function sheet(width: number, height: number, palette: Palette, inner: string): string {
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="${FONT}" font-size="11">\n` +
    `<rect width="${width}" height="${height}" fill="${escaped(palette.paper)}"/>\n${inner}\n</svg>\n`;
}

/** The title, and below it what the lines are. */
export function head(title: string, layers: Layer[], palette: Palette): string {
  const pen = new SvgRenderer(palette.paper);
  let x = 10;
  const told = new Set<string>();
  for (const { name, kind, colour, dash = [], alpha = 1, shape = "circle" } of layers) {
    if (!name || told.has(name)) continue;
    told.add(name);
    if (kind === "dots") pen.dot(shape, x + 7, 34, 3, colour, alpha);
    else pen.line([[x, 34], [x + 14, 34]], { colour, alpha, width: kind === "area" ? 8 : 2, dash });
    pen.text(name, x + 19, 38, palette.muted);
    x += 19 + pen.measure(name) + 14;
  }
  return `<text x="10" y="19" fill="${escaped(palette.ink)}" font-size="13" font-weight="600">${escaped(title)}</text>\n${pen.markup}\n`;
}

/** A row for each place, a column for each series; of an area two. */
export function csvOf(label: string, layers: Layer[]): string {
  const columns: { name: string; at: Map<number, Value> }[] = [];
  const add = (name: string, x: ArrayLike<number>, y: ArrayLike<Value>) => {
    const known = columns.find((column) => column.name === name);
    const at = known?.at ?? new Map<number, Value>();
    for (let i = 0; i < x.length; i += 1) at.set(x[i] as number, y[i] ?? null);
    if (!known) columns.push({ name, at });
  };
  for (const { name, x, y, low, kind } of layers) {
    if (!name || kind === "rules" || kind === "ticks") continue;
    if (low && kind === "area") {
      add(texts.plot.low(name), x, low);
      add(texts.plot.high(name), x, y);
    } else add(name, x, y);
  }
  const places = [...new Set(columns.flatMap(({ at }) => [...at.keys()]))].sort((a, b) => a - b);
  return table([[label, ...columns.map(({ name }) => name)], ...places.map((place) => [place, ...columns.map(({ at }) => at.get(place) ?? null)])]);
}

/** Rows as CSV; nothing for what is not a number. */
export function table(rows: (string | number | null)[][]): string {
  const cell = (value: string | number | null) => {
    if (value === null || (typeof value === "number" && Number.isNaN(value))) return "";
    const text = typeof value === "number" ? String(Number(value.toPrecision(9))) : value;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => row.map(cell).join(",")).join("\n") + "\n";
}

/** Hand a file to the person. */
export function download(name: string, content: Blob): void {
  const url = URL.createObjectURL(content);
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** The SVG as a PNG, at twice its size. */
export async function pngOf(svg: string): Promise<Blob> {
  const url = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
  try {
    const image = new Image();
    image.src = url;
    await image.decode();
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [SHARPER * image.width, SHARPER * image.height];
    canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((yes, no) => canvas.toBlob((blob) => (blob ? yes(blob) : no(new Error(texts.plot.pictureFailed))), "image/png"));
  } finally {
    URL.revokeObjectURL(url);
  }
}
