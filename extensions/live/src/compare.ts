// Runs over one another: a colour and a kind of dash for each, diamonds for their checks, and a table of what differs.

import uPlot from "uplot";
import { Card } from "./card";
import { el, toggle } from "./dom";
import { clock, number, steps, tick } from "./format";
import { byKeyboard } from "./keyboard";
import { baseOptions, CLOCK, followWidth, logSplits, rangeOf, WHOLE, type PaletteOf } from "./plot";
import { DASHES } from "./picks";
import type { Store } from "./store";
import { pickColour } from "./theme";

// Columns of "compared", in the order of workbench/ui/canvas/runs/past_curves.py; X is where the three axes begin.
const WHICH = 0, KIND = 1, X = 2, VALUE = 5;
const BRIEF = 5; // seconds; a clock has no words for parts of one
const AXES = ["update", "epoch", "time"] as const;

type Line = { x: number[]; y: number[] };

export class Compare {
  readonly card = new Card("Compare", "", "compare");
  private axis = 0;
  private log = false;
  private plot: uPlot | null = null;
  private lines: Line[] = [];
  private checks: Line[] = [];
  private readonly host = el("div", "wb-body");
  private readonly table = el("div", "wb-compare-table", "", { tabindex: "0", role: "region", "aria-label": "What the compared runs differ in" });
  private readonly close: () => void;

  constructor(
    private readonly store: Store,
    private readonly colours: PaletteOf,
  ) {
    const choice = el("span", "wb-choice", "", { role: "group", "aria-label": "Horizontal axis" });
    this.axis = store.looks("compare axis", 0);
    const buttons = AXES.map((name, i) => {
      const made = el("button", "wb-tool", name, { type: "button", "aria-pressed": String(i === this.axis) });
      made.addEventListener("click", () => {
        this.axis = i;
        store.keep("compare axis", i);
        buttons.forEach((one, k) => one.setAttribute("aria-pressed", String(k === i)));
        this.remake();
      });
      return made;
    });
    choice.append(...buttons);
    this.log = store.looks("compare log", false);
    const log = toggle("log", "Logarithmic loss axis", this.log, (on) => {
      this.log = on;
      store.keep("compare log", on);
      this.remake();
    });
    const away = el("button", "wb-tool", "put away", { type: "button", title: "Compare none" });
    away.addEventListener("click", () => store.request("compare", { runs: [] }));
    this.card.tools.append(choice, log, away);
    this.card.body.append(this.host, this.table);
    this.card.root.hidden = true;
    this.close = followWidth(this.host, () => this.plot);
  }

  draw(): void {
    const { compared } = this.store.state;
    if (compared && this.store.compared.rows.view !== compared.view) return; // its curves are on their way
    const held = this.card.root.contains(document.activeElement);
    this.card.root.hidden = !compared;
    this.card.empty = false;
    if (!compared) return held ? this.leave() : undefined;
    this.card.setKey(compared.runs.map((name, i) => ({ name, swatch: `pick${i}` })));
    this.card.setCaption(compared.metric && `Lines: training loss, smoothed. Diamonds: ${compared.metric}.`);
    this.fill();
    this.remake();
  }

  /** Put away under the keyboard: it goes on to the runs, where another comparison begins. */
  private leave(): void {
    this.card.root.closest(".wb-live")?.querySelector<HTMLElement>(".wb-runs-scroll")?.focus();
  }

  redraw(): void {
    this.plot?.redraw(false);
  }

  destroy(): void {
    this.close();
    this.plot?.destroy();
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

  private read(): void {
    const rows = this.store.compared.rows;
    const count = this.store.state.compared?.runs.length ?? 0;
    const made = () => Array.from({ length: count }, (): Line => ({ x: [], y: [] }));
    [this.lines, this.checks] = [made(), made()];
    for (let row = 0; row < rows.count; row += 1) {
      const line = (rows.at(row, KIND) === 0 ? this.lines : this.checks)[rows.at(row, WHICH)];
      const x = rows.at(row, X + this.axis);
      if (!line || !Number.isFinite(x) || x <= (line.x.at(-1) ?? -Infinity)) continue;
      line.x.push(x);
      line.y.push(rows.at(row, VALUE));
    }
  }

  private remake(): void {
    const held = this.plot?.over === document.activeElement;
    this.plot?.destroy();
    this.plot = null;
    this.read();
    const there = this.lines.map(({ x, y }) => [x, y.map((value) => this.drawn(value) ? value : null)] as uPlot.AlignedData);
    if (!there.length) return;
    const data = there.length > 1 ? uPlot.join(there) : (there[0] as uPlot.AlignedData);
    const base = baseOptions(this.colours, { x: AXES[this.axis] as string, y: this.log ? "loss (log)" : "loss" });
    const [x, y] = base.axes as [uPlot.Axis, uPlot.Axis];
    const [words, apart] = this.numbers(data[0]);
    const logAxis: Partial<uPlot.Axis> = this.log ? { splits: (_u, _i, min, max) => logSplits(min, max), filter: (_u, s) => s } : {};
    const options: uPlot.Options = {
      ...base,
      width: this.host.clientWidth || 300,
      scales: {
        x: { time: false, range: (_u, min, max) => [min, max > min ? max : min + 1] },
        y: { distr: this.log ? 3 : 1, range: () => this.range() },
      },
      axes: [
        { ...x, ...apart, values: (_u, s) => s.map((v) => (v == null ? "" : words(v))) },
        { ...y, ...logAxis, values: (_u, s) => s.map((v) => (v == null ? "" : tick(v))) },
      ],
      series: [{}, ...this.lines.map((_, i) => ({
        stroke: () => this.colour(i), width: 1.75, dash: DASHES[i % DASHES.length] as number[], points: { show: false },
      }))],
      hooks: { draw: [(u) => this.diamonds(u)], setCursor: [() => this.readout()] },
    };
    const plot = (this.plot = new uPlot(options, data, this.host));
    byKeyboard(plot, "Losses of the compared runs", () => `${AXES[this.axis]} ${words(plot.data[0][plot.cursor.idx ?? 0] as number)}: ${this.card.words()}`);
    if (held) plot.over.focus();
    this.readout();
  }

  /** How the places on the horizontal axis, which are `x`, are told, and how far apart their numbers may lie. */
  private numbers(x: ArrayLike<number>): [(value: number) => string, Partial<uPlot.Axis>] {
    if (this.axis < 2) return [steps, this.axis === 0 ? { incrs: WHOLE } : {}]; // of epochs there are parts
    const brief = (x[x.length - 1] as number) - (x[0] as number) < BRIEF;
    return brief ? [(value) => `${number(value)} s`, {}] : [clock, { incrs: CLOCK }];
  }

  /** Whether a value has a place on the axis. */
  private drawn(value: number): boolean {
    return value > (this.log ? 0 : -Infinity) && value < Infinity;
  }

  private colour(i: number): string {
    return pickColour(this.colours(), i);
  }

  private range(): [number, number] {
    const values = [...this.lines, ...this.checks].flatMap((line) => line.y);
    if (!this.log) return rangeOf(values);
    const [low, top] = rangeOf(values.filter((v) => v > 0).map(Math.log10));
    return [10 ** low, 10 ** top];
  }

  private diamonds(plot: uPlot): void {
    const { ctx } = plot;
    const r = 3.5 * devicePixelRatio;
    this.checks.forEach((line, i) => {
      ctx.fillStyle = this.colour(i);
      line.x.forEach((at, k) => {
        if (!this.drawn(line.y[k] as number)) return;
        const [x, y] = [plot.valToPos(at, "x", true), plot.valToPos(line.y[k] as number, "y", true)];
        ctx.beginPath();
        ctx.moveTo(x - r, y);
        ctx.lineTo(x, y - r);
        ctx.lineTo(x + r, y);
        ctx.lineTo(x, y + r);
        ctx.fill();
      });
    });
  }

  /** Each run's loss under the cursor; without one, its last. */
  private readout(): void {
    const at = this.plot?.cursor.idx;
    const x = at == null ? Infinity : (this.plot?.data[0][at] as number);
    this.store.state.compared?.runs.forEach((name, i) => {
      const line = this.lines[i];
      let k = (line?.x.length ?? 0) - 1;
      while (k > 0 && (line?.x[k] as number) > x) k -= 1;
      this.card.setValue(name, number(line?.y[k] ?? NaN));
    });
  }
}
