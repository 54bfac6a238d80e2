// Settings against results: parallel coordinates, a line for each run, and what part of the differences each setting explains.

import { el, focusIn } from "../shared/dom";
import type { Store } from "../data/store";
import type { Explained as Told } from "../data/messages";
import { texts } from "../texts";

const { runs: words } = texts;
const NS = "http://www.w3.org/2000/svg";
const HEIGHT = 224, TOP = 31, BOTTOM = 20, SIDE = 46;
const TEXT = 6.3; // pixels of a character
const TOP_PLACE = 999; // of an axis, as workbench/ui/canvas/runs/runs_page.py has it
const REACH = 14; // pixels beside an axis where it is taken hold of
const BEYOND = 8; // pixels beyond its ends, so that a drag reaches them
const CLICK = 4; // pixels: less is no drag

type Part = [low: number, high: number]; // of an axis, in places

type Attributes = Record<string, string | number>;

export class Explained {
  readonly root = el("div", "wb-explained", "", { role: "group", "aria-label": words.explained });
  private readonly lines = el("div", "wb-parallel");
  private readonly bars = el("div", "wb-shares");
  private readonly caption = el("div", "wb-caption", "", { role: "status" });
  private readonly inside = el("span");
  private readonly narrow = el("button", "wb-tool", words.onlyBrushed, { type: "button", title: words.onlyBrushedTooltip });
  private readonly release = el("button", "wb-tool", words.clearBrush, { type: "button" });
  private readonly brushed = el("div", "wb-brushed");
  private readonly brushes = new Map<string, Part>(); // by the name of the axis
  private readonly drawnLines = new Map<string, SVGElement>(); // by run
  private isDragged = false; // what is drawn anew would lose the pointer
  private told = "";
  private readonly observer = new ResizeObserver(() => this.draw());

  /** chosen: whether a run is selected; choose: selects it, or no longer. */
  constructor(private readonly store: Store, private readonly chosen: (run: string) => boolean, private readonly choose: (run: string) => void) {
    this.brushed.append(this.inside, this.narrow, this.release);
    this.root.append(this.lines, this.bars, this.brushed, this.caption);
    this.narrow.addEventListener("click", () => {
      store.request("see_runs", { brushed: Object.fromEntries(this.brushes) });
      this.clear();
    });
    this.release.addEventListener("click", () => this.clear());
    this.lines.addEventListener("dblclick", () => this.clear());
    this.lines.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || this.brushes.size === 0) return;
      event.stopPropagation();
      this.clear();
    });
    this.observer.observe(this.root);
  }

  destroy(): void {
    this.observer.disconnect();
  }

  draw(): void {
    const { explained } = this.store.state;
    this.root.hidden = !explained;
    if (!explained || this.isDragged) return;
    const chosen = explained.runs.filter(({ run }) => this.chosen(run)).map(({ run }) => run); // their lines are strong
    for (const name of [...this.brushes.keys()]) if (!explained.axes.some((axis) => axis.name === name)) this.brushes.delete(name);
    const told = JSON.stringify([explained, chosen, [...this.brushes], this.lines.clientWidth]);
    if (told === this.told) return;
    this.told = told;
    const held = focusIn(this.lines) !== null;
    this.lines.replaceChildren(...(explained.axes.length > 1 && explained.runs.length > 1 ? [this.parallel(explained)] : []));
    if (held) this.lines.querySelector<SVGElement>("svg")?.focus({ preventScroll: true });
    this.drawShares(explained);
    this.caption.textContent = this.said(explained);
    this.fade();
  }

  private clear(): void {
    this.brushes.clear();
    this.draw();
  }

  /** Whether a run lies within all parts of axes that were brushed. */
  private isInside({ axes }: Told, at: (number | null)[]): boolean {
    return axes.every(({ name }, k) => {
      const [part, place] = [this.brushes.get(name), at[k] ?? null];
      return !part || (place !== null && part[0] <= place && place <= part[1]);
    });
  }

  /** Only the lines of selected runs within the brushes are strong; say how many are within. */
  private fade(): void {
    const { explained } = this.store.state;
    if (!explained) return;
    const isAnyChosen = explained.runs.some(({ run }) => this.chosen(run));
    const inside = explained.runs.filter(({ at }) => this.isInside(explained, at));
    const strong = new Set(inside.filter(({ run }) => !isAnyChosen || this.chosen(run)).map(({ run }) => run));
    for (const [run, line] of this.drawnLines) line.classList.toggle("wb-pale", !strong.has(run));
    this.brushed.hidden = this.brushes.size === 0;
    this.inside.textContent = words.brushed(inside.length, explained.runs.length);
    this.narrow.disabled = inside.length === 0;
  }

  private said({ runs, all, axes, metric, mode }: Told): string {
    if (runs.length < 2 || axes.length < 2) return words.nothingDiffers;
    return words.explainedCaption(runs.length, all, metric, mode === "max");
  }

  private parallel({ axes, runs, mode }: Told): SVGElement {
    const width = Math.max(320, this.lines.clientWidth);
    const x = (k: number) => SIDE + (k * (width - 2 * SIDE)) / Math.max(1, axes.length - 1);
    const y = (place: number) => HEIGHT - BOTTOM - (place / TOP_PLACE) * (HEIGHT - TOP - BOTTOM);
    const svg = drawn("svg", { width: "100%", height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, tabindex: 0, role: "group", "aria-label": words.parallel });
    this.drawnLines.clear();
    const good = (at: (number | null)[]) => {
      const place = at.at(-1) ?? null;
      return place === null ? 0 : (mode === "max" ? place : TOP_PLACE - place) / TOP_PLACE;
    };
    const sorted = [...runs].sort((a, b) => good(a.at) - good(b.at)); // the best ones lie on top
    for (const { run, at } of sorted) svg.append(this.line(run, at, x, y, good(at)));
    axes.forEach(({ name, ends, choices }, k) => {
      const side = k === 0 ? "start" : k === axes.length - 1 ? "end" : "middle";
      const place = k === 0 ? 2 : k === axes.length - 1 ? width - 2 : x(k);
      const room = Math.max(4, Math.floor((width / axes.length - 6) / TEXT));
      svg.append(drawn("line", { x1: x(k), x2: x(k), y1: y(TOP_PLACE), y2: y(0), class: "wb-parallel-axis" }), ...this.brush(svg, name, x(k), y));
      svg.append(written(short(name, room), place, 11, side, "wb-parallel-name", name));
      const marks = choices ? ends.map((text, i) => [text, (TOP_PLACE * i) / Math.max(1, ends.length - 1)] as const) : ([[ends[0] ?? "", 0], [ends[1] ?? "", TOP_PLACE]] as const);
      for (const [text, at] of marks) {
        if (choices) svg.append(written(short(text, room), k === axes.length - 1 ? x(k) - 5 : x(k) + 5, y(at) + 4, k === axes.length - 1 ? "end" : "start", "wb-parallel-end", text));
        else svg.append(written(short(text, room), place, at === 0 ? HEIGHT - 6 : TOP - 5, side, "wb-parallel-end", text));
      }
    });
    return svg;
  }

  /** What takes hold of an axis, and the part of it that is brushed. */
  private brush(svg: SVGElement, name: string, x: number, y: (place: number) => number): SVGElement[] {
    const held = drawn("rect", { x: x - REACH, width: 2 * REACH, y: y(TOP_PLACE) - BEYOND, height: y(0) - y(TOP_PLACE) + 2 * BEYOND, class: "wb-parallel-hold" });
    const part = drawn("rect", { x: x - 7, width: 14, y: 0, height: 0, rx: 2, class: "wb-parallel-brush" });
    const show = () => {
      const [low, high] = this.brushes.get(name) ?? [0, 0];
      part.setAttribute("y", String(y(high)));
      part.setAttribute("height", String(y(low) - y(high)));
    };
    const place = (event: PointerEvent) => {
      const box = svg.getBoundingClientRect();
      const down = ((event.clientY - box.top) / box.height) * HEIGHT;
      return Math.min(TOP_PLACE, Math.max(0, ((y(0) - down) / (y(0) - y(TOP_PLACE))) * TOP_PLACE));
    };
    held.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      event.preventDefault();
      svg.focus({ preventScroll: true });
      held.setPointerCapture(event.pointerId);
      this.isDragged = true;
      const [from, start] = [place(event), event.clientY];
      const move = (now: PointerEvent) => {
        if (Math.abs(now.clientY - start) < CLICK) this.brushes.delete(name);
        else this.brushes.set(name, [Math.min(from, place(now)), Math.max(from, place(now))]);
        show();
        this.fade();
      };
      const end = () => {
        held.removeEventListener("pointermove", move);
        this.isDragged = false;
        this.draw();
      };
      move(event);
      held.addEventListener("pointermove", move);
      held.addEventListener("lostpointercapture", end, { once: true });
    });
    show();
    return [part, held];
  }

  private line(run: string, at: (number | null)[], x: (k: number) => number, y: (place: number) => number, good: number): SVGElement {
    const path = at.map((place, k) => (place === null ? "" : `${k > 0 && at[k - 1] !== null ? "L" : "M"}${x(k).toFixed(1)} ${y(place).toFixed(1)}`)).join("");
    const line = drawn("path", { d: path, class: "wb-parallel-line" });
    this.drawnLines.set(run, line);
    (line as SVGElement & { style: CSSStyleDeclaration }).style.setProperty("--good", `${Math.round(100 * good)}%`);
    const title = drawn("title", {});
    title.textContent = run;
    line.append(title);
    line.addEventListener("click", () => this.choose(run));
    return line;
  }

  private drawShares({ shares, least, runs }: Told): void {
    const head = el("h5", "", words.importance, { title: words.importanceTooltip });
    const bars = shares.map(({ name, share, low, high }) => {
      const row = el("div", "wb-share", "", { title: words.shareTooltip(name, percent(share), percent(low), percent(high)) });
      const bar = el("span", "wb-share-bar");
      const [fill, range] = [el("i"), el("u")];
      fill.style.width = `${100 * Math.min(1, share)}%`;
      [range.style.left, range.style.width] = [`${100 * Math.min(1, low)}%`, `${100 * Math.min(1, Math.max(0, high - low))}%`];
      bar.append(fill, range);
      row.append(el("span", "wb-share-name", name), bar, el("span", "wb-share-value", words.share(percent(share), percent(low), percent(high))));
      return row;
    });
    this.bars.replaceChildren(head, ...(shares.length ? bars : [el("div", "wb-run-from", words.tooFew(least, runs.length))]));
  }
}

function percent(share: number): number {
  return Math.round(100 * share);
}

function short(text: string, room: number): string {
  return text.length <= room ? text : `${text.slice(0, Math.max(1, room - 1))}…`;
}

function drawn(tag: string, attributes: Attributes): SVGElement {
  const made = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  return made;
}

function written(text: string, x: number, y: number, side: string, kind: string, whole: string): SVGElement {
  const made = drawn("text", { x, y, "text-anchor": side, class: kind });
  const title = drawn("title", {});
  made.textContent = text;
  title.textContent = whole;
  made.append(title);
  return made;
}
