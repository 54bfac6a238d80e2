// The card that compares runs: their losses and each metric in a small plot of its own, and a table of what differs.

import uPlot from "uplot";
import { Card } from "../shared/card";
import { el, focusIn, setText, toggle } from "../shared/dom";
import { clock, number, steps } from "../shared/format";
import type { Across } from "../plot/axis";
import { Frame } from "../plot/frame";
import { Hover } from "../plot/hover";
import type { Layer, Value } from "../plot/layers";
import { csvOf, svgOf } from "../plot/save";
import { CLOCK, WHOLE, type PaletteOf } from "../plot/scales";
import { logToggle, plotTools } from "../plot/toolbar";
import type { Store } from "../data/store";
import { DASHES, pickColour } from "../shared/theme";
import { texts } from "../texts";

const { compare: words } = texts;
// Columns of "compared", in the order of workbench/ui/canvas/runs/past_curves.py; X is where the three axes begin.
const WHICH = 0, KIND = 1, X = 2, VALUE = 5;
const LOSS = 0; // the kind of the training loss
const BRIEF = 5; // seconds; a clock has no words for parts of one
const AXES = ["update", "epoch", "time"] as const;
const PLOT = 150; // pixels
const BEGINNING = 0.05, FAR = 2; // a run has diverged whose loss is so far above the highest one of this first part of it

type Line = { updates: number[]; x: number[]; y: Value[] };

/** One small plot: a metric of all runs. */
interface Multiple {
  kind: number;
  root: HTMLElement;
  title: HTMLElement;
  values: HTMLElement[];
  frame: Frame;
  lines: Line[];
  places: ArrayLike<number>;
}

export class Compare {
  readonly card = new Card(words.title, "", "compare");
  private axis: number;
  private readonly hover = new Hover();
  private readonly multiples: Multiple[] = [];
  private readonly grid = el("div", "wb-multiples");
  private readonly table = el("div", "wb-compare-table", "", { tabindex: "0", role: "region", "aria-label": words.table });
  private readonly whole: HTMLButtonElement;
  private readonly log: { draw: () => void };
  private diverged = new Set<number>();
  private at: number | null = null; // where the cursor is, on the axis

  constructor(
    private readonly store: Store,
    private readonly colours: PaletteOf,
  ) {
    const choice = el("span", "wb-choice", "", { role: "group", "aria-label": texts.axis.label });
    this.axis = store.viewOption("compare.axis", 0);
    const buttons = AXES.map((name, i) => {
      const made = el("button", "wb-tool", texts.axis.names[name], { type: "button", "aria-pressed": String(i === this.axis) });
      made.addEventListener("click", () => {
        this.axis = i;
        store.setViewOption("compare.axis", i);
        buttons.forEach((one, k) => one.setAttribute("aria-pressed", String(k === i)));
        this.remake();
      });
      return made;
    });
    choice.append(...buttons);
    this.whole = toggle(words.whole, words.wholeTooltip, store.viewOption("compare.whole", false), (on) => {
      store.setViewOption("compare.whole", on);
      this.remake();
    });
    const losses = this.multiple(LOSS);
    const log = logToggle(store, "compare.log", losses.frame, "auto");
    this.log = log;
    const away = el("button", "wb-tool wb-compare-close", texts.close, { type: "button", title: words.close });
    away.addEventListener("click", () => store.request("compare", { runs: [] }));
    this.card.tools.append(choice, log.root, this.whole);
    plotTools(this.card, "compared-runs", { svg: () => this.picture(), csv: () => csvOf(this.across().label, this.multiples.flatMap((one) => this.data(one))) }, losses.frame);
    this.card.tools.append(away);
    this.card.body.append(this.grid, this.table);
    this.card.root.hidden = true;
    this.hover.listen(this, (at) => {
      this.at = at;
      this.readout();
    });
  }

  draw(): void {
    const { compared } = this.store.state;
    if (compared && this.store.compared.rows.view !== compared.view) return; // its curves are on their way
    const held = focusIn(this.card.root) !== null;
    this.card.root.hidden = !compared;
    this.card.empty = false;
    if (!compared) return held ? this.leave() : undefined;
    this.card.setKey(compared.runs.map((name, i) => ({ name, swatch: `pick${i}` })));
    this.fill();
    this.remake();
  }

  /** The card is closed while it has the focus: move the focus to the runs, where the next comparison begins. */
  private leave(): void {
    this.card.root.closest(".wb-live")?.querySelector<HTMLElement>(".wb-runs-scroll")?.focus();
  }

  redraw(): void {
    this.multiples.forEach(({ frame }) => frame.redraw());
  }

  destroy(): void {
    this.multiples.forEach(({ frame }) => frame.destroy());
  }

  /** Settings, metrics and times: a column for each run. */
  private fill(): void {
    const { runs = [], rows = [] } = this.store.state.compared ?? {};
    const table = el("table");
    const head = el("tr");
    head.append(el("td"));
    runs.forEach((run, i) => {
      const cell = el("th", "", "", { scope: "col" });
      cell.append(el("i", `wb-swatch wb-swatch-pick${i}`), document.createTextNode(run));
      head.append(cell);
    });
    table.append(head);
    for (const [name = "", ...cells] of rows) {
      const line = el("tr");
      line.append(el("th", "", name, { scope: "row" }), ...cells.map((text) => el("td", "", text)));
      table.append(line);
    }
    this.table.replaceChildren(table);
  }

  private multiple(kind: number): Multiple {
    const [root, title, host] = [el("figure", "wb-multiple"), el("figcaption"), el("div", "wb-body")];
    root.append(title, host);
    this.grid.append(root);
    const made: Multiple = {
      kind, root, title, values: [], lines: [], places: [],
      frame: new Frame(host, this.colours, {
        name: words.plot(this.nameOf(kind)),
        places: () => made.places,
        layers: () => this.layers(made),
        across: () => this.across(),
        up: "",
        height: PLOT,
        above: () => 6,
        fit: () => this.fitted(made),
        read: () => {},
        step: (place) => place,
        place: (place) => place,
        words: () => texts.plot.reading(this.placeWords(made.places[made.frame.plot?.cursor.idx ?? 0] as number), this.reading(made)),
      }, this.hover, "auto"),
    };
    this.multiples.push(made);
    return made;
  }

  private nameOf(kind: number): string {
    return kind === LOSS ? words.loss : this.store.state.compared?.metrics[kind - 1] ?? "";
  }

  private remake(): void {
    const { runs = [], metrics = [] } = this.store.state.compared ?? {};
    while (this.multiples.length > metrics.length + 1) {
      const { frame, root } = this.multiples.pop()!;
      frame.destroy();
      root.remove();
    }
    for (let kind = this.multiples.length; kind <= metrics.length; kind += 1) this.multiple(kind);
    this.read(runs.length);
    const losses = this.multiples[LOSS]!.lines.map((line) => line.y);
    const level = Math.min(...losses.map(beginning));
    this.diverged = new Set(losses.flatMap((loss, i) => (hasDiverged(loss, level) ? [i] : [])));
    if (this.diverged.size === runs.length) this.diverged.clear();
    this.whole.hidden = this.diverged.size === 0;
    const beyond = this.isWhole ? [] : [...this.diverged].map((i) => runs[i] ?? "");
    this.card.setCaption([words.caption, beyond.length ? words.beyond(beyond.join(", ")) : ""].filter(Boolean).join(" "));
    for (const one of this.multiples) {
      const lines = one.lines.filter(({ x }) => x.length).map(({ x, y }) => [x, y] as uPlot.AlignedData);
      one.root.hidden = lines.length === 0;
      if (one.root.hidden) continue;
      one.frame.whole();
      one.places = (lines.length > 1 ? uPlot.join(lines) : (lines[0] as uPlot.AlignedData))[0];
      this.drawTitle(one, runs.length);
      one.frame.draw();
    }
    this.log.draw();
    this.readout();
  }

  private get isWhole(): boolean {
    return this.whole.getAttribute("aria-pressed") === "true";
  }

  private read(count: number): void {
    const { rows } = this.store.compared;
    for (const one of this.multiples) one.lines = Array.from({ length: count }, () => ({ updates: [], x: [], y: [] }));
    for (let row = 0; row < rows.count; row += 1) {
      const line = this.multiples[rows.at(row, KIND)]?.lines[rows.at(row, WHICH)];
      const x = rows.at(row, X + this.axis);
      if (!line || !Number.isFinite(x) || x <= (line.x.at(-1) ?? -Infinity)) continue;
      line.updates.push(rows.at(row, X));
      line.x.push(x);
      line.y.push(rows.at(row, VALUE));
    }
  }

  private drawTitle(one: Multiple, count: number): void {
    one.values = Array.from({ length: count }, (_, i) => el("span", `wb-multiple-value wb-ink-pick${i}`));
    one.title.replaceChildren(el("b", "", this.nameOf(one.kind), { title: this.nameOf(one.kind) }), ...one.values);
  }

  private across(): Across {
    const label = texts.axis.names[AXES[this.axis] as (typeof AXES)[number]];
    if (this.axis < 2) return { label, words: steps, ...(this.axis === 0 ? { incrs: WHOLE } : {}) }; // of epochs there are parts
    const places = this.multiples[LOSS]?.places ?? [];
    const brief = (places[places.length - 1] as number) - (places[0] as number) < BRIEF;
    return brief ? { label, words: (value) => texts.seconds(number(value)) } : { label, words: clock, incrs: CLOCK };
  }

  private placeWords(x: number): string {
    const { label, words: said } = this.across();
    return texts.axis.place(label, said(this.axis === 0 ? Math.round(x) : x));
  }

  /** What decides how far a plot reaches up: without the diverged runs, which would flatten the others. */
  private fitted({ lines }: Multiple): Value[] {
    return lines.flatMap(({ y }, i) => (this.isWhole || !this.diverged.has(i) ? y : []));
  }

  private data({ lines, kind }: Multiple): Layer[] {
    const names = this.store.state.compared?.runs ?? [];
    return lines.map(({ x, y }, i): Layer => ({
      name: `${names[i] ?? ""} ${this.nameOf(kind)}`, kind: "line", x, y, colour: this.colour(i), width: 1.75, dash: DASHES[i % DASHES.length] as number[],
    }));
  }

  /** The lines of the runs, a point where there is but one, and a rule where a setting was changed. */
  private layers(one: Multiple): Layer[] {
    const points = one.lines.flatMap(({ x, y }, i): Layer[] => (x.length === 1 ? [{ name: "", kind: "dots", x, y, colour: this.colour(i), size: 3 }] : []));
    const marks = this.marks().map(({ i, x }): Layer => ({ name: "", kind: "rules", x: [x], y: [null], colour: this.colour(i), alpha: 0.55, dash: DASHES[i % DASHES.length] as number[], width: 1 }));
    return [...marks, ...this.data(one), ...points];
  }

  /** Where settings were changed, on the present axis. */
  private marks(): { i: number; x: number; step: number; text: string }[] {
    return (this.store.state.compared_marks ?? []).flatMap(([i, step, text]) => {
      const line = this.multiples[LOSS]?.lines[i];
      const k = line ? line.updates.findIndex((update) => update >= step) : -1;
      return line && k >= 0 ? [{ i, x: this.axis === 0 ? step : (line.x[k] as number), step, text }] : [];
    });
  }

  private picture(): string {
    const shown = this.multiples.filter(({ root }) => !root.hidden);
    const pictures = shown.map((one) => svgOf(one.frame, this.nameOf(one.kind), this.colours()));
    const sizes = pictures.map((text) => ["width", "height"].map((name) => Number(text.match(new RegExp(`${name}="(\\d+)"`))?.[1] ?? 0)) as [number, number]);
    const [width, height] = [Math.max(...sizes.map(([w]) => w)), Math.max(...sizes.map(([, h]) => h))];
    const across = Math.min(2, shown.length);
    const placed = pictures.map((text, i) => text.replace("<svg ", `<svg x="${(i % across) * width}" y="${Math.floor(i / across) * height}" `));
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${across * width}" height="${Math.ceil(shown.length / across) * height}">\n${placed.join("\n")}</svg>\n`;
  }

  private colour(i: number): string {
    return pickColour(this.colours(), i);
  }

  /** Each run's values under the cursor, or where it has ended before; without a cursor its last ones. */
  private readout(): void {
    const { at } = this;
    const { runs = [], over = [] } = this.store.state.compared ?? {};
    this.card.setAt(at === null ? "" : texts.axis.at(this.across().label, this.across().words(this.axis === 0 ? Math.round(at) : at)));
    for (const { lines, values } of this.multiples) {
      values.forEach((value, i) => setText(value, valueAt(lines[i], at, over[i] ?? true)));
    }
    const marks = this.marks();
    runs.forEach((run, i) => {
      const line = this.multiples[LOSS]!.lines[i];
      const end = line?.x.at(-1);
      const hasEnded = at !== null && end !== undefined && at > end && over[i] === true;
      const change = marks.filter((mark) => mark.i === i && (at === null || mark.x <= at)).at(-1);
      const said = hasEnded ? words.ended(this.placeWords(end)) : change ? words.since(change.text, change.step) : "";
      this.card.setValue(run, said);
    });
  }

  private reading({ values }: Multiple): string {
    const runs = this.store.state.compared?.runs ?? [];
    return texts.list(runs.map((run, i) => texts.plot.value(run, values[i]?.textContent ?? "")));
  }
}

/** The value of a line at a place: its last one before it. */
function valueAt(line: Line | undefined, at: number | null, isOver: boolean): string {
  if (!line?.x.length) return texts.noNumber;
  let k = line.x.length - 1;
  if (at !== null && isOver && at > (line.x[k] as number) * (1 + 1e-9)) return words.endedHere;
  while (at !== null && k > 0 && (line.x[k] as number) > at) k -= 1;
  return number(line.y[k] ?? NaN);
}

function finiteOf(loss: Value[]): number[] {
  return loss.filter((value): value is number => value !== null && Number.isFinite(value));
}

/** The highest loss of a run's beginning. */
function beginning(loss: Value[]): number {
  const finite = finiteOf(loss);
  return finite.length ? Math.max(...finite.slice(0, Math.max(1, Math.ceil(BEGINNING * finite.length)))) : Infinity;
}

/** Whether a loss has risen far above where it began; where it blew up in its beginning, above where the others did (`level`). */
function hasDiverged(loss: Value[], level: number): boolean {
  const finite = finiteOf(loss);
  if (finite.length < 2) return false;
  const blewUp = (finite.at(-1) as number) > (finite[0] as number);
  const start = blewUp ? Math.min(beginning(loss), level) : beginning(loss);
  const [low, high] = [Math.min(...finite), Math.max(...finite)];
  return high - Math.min(low, start) > FAR * Math.max(Math.abs(start), start - low);
}
