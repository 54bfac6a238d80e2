// The card that compares runs: their losses in one plot, and a table of what differs.

import uPlot from "uplot";
import { Card } from "../shared/card";
import { el, focusIn } from "../shared/dom";
import { clock, number, steps } from "../shared/format";
import type { Across } from "../plot/axis";
import { Frame } from "../plot/frame";
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
const BRIEF = 5; // seconds; a clock has no words for parts of one
const AXES = ["update", "epoch", "time"] as const;

type Line = { x: number[]; y: Value[] };

export class Compare {
  readonly card = new Card(words.title, "", "compare");
  private axis = 0;
  private readonly frame: Frame;
  private readonly log: { draw: () => void };
  private places: ArrayLike<number> = [];
  private lines: Line[] = [];
  private checks: Line[] = [];
  private readonly host = el("div", "wb-body");
  private readonly table = el("div", "wb-compare-table", "", { tabindex: "0", role: "region", "aria-label": words.table });

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
    this.frame = new Frame(this.host, colours, {
      name: words.plot,
      places: () => this.places,
      layers: () => this.layers(),
      across: () => this.across(),
      up: words.up,
      fit: () => [...this.lines, ...this.checks].flatMap((line) => line.y),
      read: (at) => this.readout(at),
      words: () => texts.plot.reading(texts.axis.place(this.across().label, this.across().words(this.places[this.frame.plot?.cursor.idx ?? 0] as number)), this.card.reading()),
    });
    const log = logToggle(store, "compare.log", this.frame, "auto");
    this.log = log;
    const away = el("button", "wb-tool wb-compare-close", texts.close, { type: "button", title: words.close });
    away.addEventListener("click", () => store.request("compare", { runs: [] }));
    this.card.tools.append(choice, log.root);
    plotTools(this.card, "compared-runs", {
      svg: () => svgOf(this.frame, words.plot, colours()),
      csv: () => csvOf(this.across().label, this.layers()),
    }, this.frame);
    this.card.tools.append(away);
    this.card.body.append(this.host, this.table);
    this.card.root.hidden = true;
  }

  draw(): void {
    const { compared } = this.store.state;
    if (compared && this.store.compared.rows.view !== compared.view) return; // its curves are on their way
    const held = focusIn(this.card.root) !== null;
    this.card.root.hidden = !compared;
    this.card.empty = false;
    if (!compared) return held ? this.leave() : undefined;
    this.card.setKey(compared.runs.map((name, i) => ({ name, swatch: `pick${i}`, room: 8 })));
    this.card.setCaption(compared.metric && words.caption(compared.metric));
    this.fill();
    this.remake();
  }

  /** The card is closed while it has the focus: move the focus to the runs, where the next comparison begins. */
  private leave(): void {
    this.card.root.closest(".wb-live")?.querySelector<HTMLElement>(".wb-runs-scroll")?.focus();
  }

  redraw(): void {
    this.frame.redraw();
  }

  destroy(): void {
    this.frame.destroy();
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
    this.read();
    this.frame.whole();
    if (!this.lines.length) return;
    const there = this.lines.map(({ x, y }) => [x, y] as uPlot.AlignedData);
    this.places = (there.length > 1 ? uPlot.join(there) : (there[0] as uPlot.AlignedData))[0];
    this.frame.draw();
    this.log.draw();
    this.readout(this.frame.plot?.cursor.idx ?? null);
  }

  private across(): Across {
    const label = texts.axis.names[AXES[this.axis] as (typeof AXES)[number]];
    if (this.axis < 2) return { label, words: steps, ...(this.axis === 0 ? { incrs: WHOLE } : {}) }; // of epochs there are parts
    const brief = (this.places[this.places.length - 1] as number) - (this.places[0] as number) < BRIEF;
    return brief ? { label, words: (value) => texts.seconds(number(value)) } : { label, words: clock, incrs: CLOCK };
  }

  private layers(): Layer[] {
    const names = this.store.state.compared?.runs ?? [];
    return this.lines.flatMap(({ x, y }, i): Layer[] => {
      const [name, colour, checks] = [names[i] ?? "", this.colour(i), this.checks[i]];
      const line: Layer = { name, kind: "line", x, y, colour, width: 1.75, dash: DASHES[i % DASHES.length] as number[] };
      return checks?.x.length ? [line, { name: words.validation(name), kind: "dots", x: checks.x, y: checks.y, colour, shape: "diamond", size: 3.5 }] : [line];
    });
  }

  private colour(i: number): string {
    return pickColour(this.colours(), i);
  }

  /** Each run's loss under the cursor; without one, its last. */
  private readout(at: number | null): void {
    const x = at === null ? Infinity : (this.places[at] as number);
    this.store.state.compared?.runs.forEach((name, i) => {
      const line = this.lines[i];
      let k = (line?.x.length ?? 0) - 1;
      while (k > 0 && (line?.x[k] as number) > x) k -= 1;
      this.card.setValue(name, number(line?.y[k] ?? NaN));
    });
  }
}
