// The head of the table of runs: a click on a column sorts by it, its right edge sizes it.

import { el } from "../shared/dom";
import type { Store } from "../data/store";
import { texts } from "../texts";

const { runs: words } = texts;
const NEWEST = { sort: "started", down: true };
const UNSORTED = "curve";
const LEAST = 40, STEP = 16; // pixels of a column, and of a press of a key

export class TableHead {
  readonly root = el("tr");
  private told = "";

  /** sized: called when a column has another width. */
  constructor(private readonly store: Store, private readonly first: HTMLElement, private readonly sized: () => void) {}

  /** The width of a column in pixels; 0: as wide as its texts. */
  width(name: string): number {
    return this.store.viewOption<Record<string, number>>("runs.widths", {})[name] ?? 0;
  }

  draw(): void {
    const { columns = [], numeric = [], sort, down } = this.store.state.runs ?? {};
    const told = JSON.stringify([columns, numeric, sort, down]);
    if (told === this.told) return;
    this.told = told;
    const held = (this.root.getRootNode() as Document | ShadowRoot).activeElement?.closest<HTMLElement>("th")?.dataset["column"];
    const select = el("th", "", "", { scope: "col" });
    select.append(this.first);
    const actions = el("th", "wb-run-actions", "", { scope: "col" });
    actions.append(el("span", "wb-spoken", words.actions));
    this.root.replaceChildren(select, ...["run", ...columns].map((name, i) => this.headOf(name, i > 0 && numeric[i - 1] === true)), actions);
    if (held) this.root.querySelector<HTMLElement>(`th[data-column="${CSS.escape(held)}"] .wb-sort`)?.focus();
  }

  private headOf(name: string, isNumeric: boolean): HTMLElement {
    const { sort, down } = this.store.state.runs ?? NEWEST;
    const sorted = name !== sort ? "none" : down ? "descending" : "ascending";
    const cell = el("th", isNumeric ? "wb-run-number" : "", "", { scope: "col", "data-column": name, "aria-sort": sorted });
    const about = (words.about as Record<string, string>)[name] ?? "";
    if (name === UNSORTED) cell.append(el("span", "", words.sparkline, { title: about }));
    else {
      const button = el("button", "wb-sort", name, { type: "button", title: [about, words.sortBy(name)].filter(Boolean).join(". ") });
      let order = { sort, down }; // a second click may come before the answer to the first
      button.addEventListener("click", () => {
        order = name !== order.sort ? { sort: name, down: false } : order.down ? NEWEST : { sort: name, down: true };
        this.store.request("see_runs", order);
      });
      cell.append(button);
    }
    cell.append(this.edge(name, cell));
    this.fit(cell, this.width(name));
    return cell;
  }

  /** What sizes a column: drag it, or use the arrow keys; a double click makes it as wide as its texts. */
  private edge(name: string, cell: HTMLElement): HTMLElement {
    const edge = el("span", "wb-edge", "", { role: "separator", "aria-orientation": "vertical", tabindex: "0", "aria-label": words.sizeColumn(name), title: words.sizeColumnTooltip });
    edge.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      edge.setPointerCapture(event.pointerId);
      const [from, before] = [event.clientX, cell.getBoundingClientRect().width];
      const move = (to: PointerEvent) => this.fit(cell, Math.max(LEAST, before + to.clientX - from), true);
      edge.addEventListener("pointermove", move);
      edge.addEventListener("pointerup", (to) => {
        edge.removeEventListener("pointermove", move);
        if (to.clientX !== from) this.keep(name, Math.max(LEAST, before + to.clientX - from));
      }, { once: true });
    });
    const say = () => edge.setAttribute("aria-valuenow", String(Math.round(cell.getBoundingClientRect().width)));
    edge.setAttribute("aria-valuenow", String(this.width(name)));
    edge.addEventListener("focus", say);
    edge.addEventListener("dblclick", () => this.keep(name, 0));
    edge.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -STEP, ArrowRight: STEP }[event.key];
      if (by === undefined) return;
      event.preventDefault();
      event.stopPropagation();
      this.keep(name, Math.max(LEAST, cell.getBoundingClientRect().width + by));
      say();
    });
    return edge;
  }

  private keep(name: string, width: number): void {
    const widths = { ...this.store.viewOption<Record<string, number>>("runs.widths", {}), [name]: Math.round(width) };
    if (!width) delete widths[name];
    this.store.setViewOption("runs.widths", widths);
    for (const cell of this.root.querySelectorAll<HTMLElement>("th[data-column]")) this.fit(cell, this.width(cell.dataset["column"]!));
    this.sized();
  }

  private fit(cell: HTMLElement, width: number, drawsRows = false): void {
    fit(cell, width);
    if (!drawsRows) return;
    const at = [...this.root.children].indexOf(cell);
    for (const row of this.root.closest("table")?.tBodies[0]?.rows ?? []) if (row.cells.length > at) fit(row.cells[at]!, width);
  }
}

/** Make a cell this wide; 0: as wide as its texts. */
export function fit(cell: HTMLElement, width: number): void {
  const text = width ? `${width}px` : "";
  [cell.style.minWidth, cell.style.maxWidth] = [text, text];
}
