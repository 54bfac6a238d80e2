// One run in the table of runs: its name, its cells, and the button of its menu.

import { el, focusIn } from "../shared/dom";
import { spark } from "./sparkline";
import { fit } from "./table-head";
import type { Store } from "../data/store";
import type { RunRow } from "../data/messages";
import { texts } from "../texts";

const { runs: words } = texts;
const SHAPES: Record<string, string> = { queued: "○", running: "▶", paused: "❚❚", finished: "✓", stopped: "■", failed: "✕" };

/** What a row asks of the table. */
export interface Table {
  choose(run: string, on: boolean): void;
  /** Open the menu of a run below this button. */
  menu(run: string, button: HTMLElement): void;
  width(column: string): number;
}

export class Row {
  readonly root: HTMLTableRowElement = el("tr");
  private readonly tick: HTMLInputElement;
  private readonly pin: HTMLButtonElement;
  private readonly open: HTMLButtonElement;
  private readonly more: HTMLButtonElement;
  private told = "";

  constructor(
    store: Store,
    private readonly run: string,
    private readonly table: Table,
  ) {
    this.tick = el("input", "", "", { type: "checkbox", "aria-label": words.selectLabel(run), title: words.selectTooltip, "data-what": "select" });
    this.tick.addEventListener("change", () => table.choose(run, this.tick.checked));
    this.pin = el("button", "wb-pin", "", { type: "button", "data-what": "pin", title: words.pinTooltip });
    this.pin.addEventListener("click", () => store.request("annotate", { run, pinned: this.pin.getAttribute("aria-pressed") !== "true" }));
    this.open = el("button", "wb-run-open", "", { type: "button", "data-what": "open", title: words.openTooltip(run) });
    this.open.addEventListener("click", () => store.request("show", { run }));
    this.more = el("button", "wb-run-more", "⋯", { type: "button", "data-what": "more", "aria-haspopup": "menu", "aria-expanded": "false", "aria-label": words.menuLabel(run), title: words.menuTooltip });
    this.more.addEventListener("click", () => table.menu(run, this.more));
  }

  show(row: RunRow, columns: string[], numeric: boolean[], notes: string): void {
    const told = JSON.stringify([row, columns, numeric, notes, columns.map((name) => this.table.width(name)), this.table.width("run")]);
    if (told === this.told) return;
    this.told = told;
    this.pin.textContent = row.pinned ? "★" : "☆";
    this.pin.setAttribute("aria-pressed", String(row.pinned));
    this.pin.setAttribute("aria-label", words.pinLabel(this.run));
    this.open.textContent = row.name || row.run;
    const ticked = el("td");
    ticked.append(this.tick, this.pin);
    const name = this.name(row, notes);
    fit(name, this.table.width("run"));
    const actions = el("td", "wb-run-actions");
    actions.append(this.more);
    const held = focusIn(this.root);
    this.root.replaceChildren(ticked, name, ...columns.map((column, i) => this.cell(row, column, row.cells[i] ?? "", numeric[i] === true)), actions);
    held?.focus(); // its place was taken and given back
  }

  mark(chosen: boolean): void {
    this.tick.checked = chosen;
  }

  private cell(row: RunRow, column: string, text: string, isNumeric: boolean): HTMLElement {
    const cell = el("td", isNumeric ? "wb-run-number" : "wb-run-text");
    fit(cell, this.table.width(column));
    if (column === "status") {
      cell.classList.add("wb-run-status", `wb-run-${row.status.replace("?", "")}`);
      cell.append(el("i", "", row.trouble ? "!" : SHAPES[row.status] ?? "", { "aria-hidden": "true" }), document.createTextNode(statusText(row.status)));
      if (row.trouble) {
        cell.append(el("b", "wb-trouble", row.trouble[1]));
        cell.dataset["trouble"] = row.trouble[0];
      }
    } else if (column === "curve") {
      cell.classList.add("wb-run-spark");
      cell.append(spark(row.spark, row.dots));
    } else if (column === "started") {
      cell.classList.add("wb-run-when");
      cell.textContent = when(row.created);
    } else {
      const [value = "", change] = text.split(" → "); // a setting that was changed while the run trained
      cell.textContent = value || (column === "validation" ? texts.noNumber : "");
      if (change) cell.append(el("span", "wb-run-from", words.changed(change)));
      cell.title = column === "time" ? texts.updates(row.step) : column === "validation" ? row.metric : text;
      if (column === "validation" && row.metric && row.metric !== "val_loss") cell.append(el("span", "wb-run-from", row.metric));
    }
    return cell;
  }

  /** The id, or the name and the id; where it continues another one; its place in a study; notes and tags. */
  private name(row: RunRow, notes: string): HTMLElement {
    const cell = el("th", "wb-run-name", "", { scope: "row" });
    cell.append(this.open);
    const facts = [row.name ? row.run : "", row.from ? words.from(row.from) : "", row.study].filter(Boolean);
    if (facts.length) cell.append(el("span", "wb-run-from", facts.join(texts.separator)));
    if (notes) cell.append(el("span", "wb-run-from wb-run-notes", notes, { title: notes }));
    if (row.tags.length) {
      const tags = el("span", "wb-run-tags");
      tags.append(...row.tags.map((tag) => el("span", "wb-run-tag", tag)));
      cell.append(tags);
    }
    return cell;
  }
}

/** A status in words; one that cannot be seen from here ends with a question mark. */
function statusText(status: string): string {
  const known = (texts.status as Record<string, string>)[status.replace("?", "")];
  return known ? status.replace(/^\w+/, known) : status;
}

function when(seconds: number): string {
  if (!seconds) return "";
  const at = new Date(1000 * seconds);
  const time = at.toLocaleTimeString(texts.locale, { hour: "2-digit", minute: "2-digit" });
  if (at.toDateString() === new Date().toDateString()) return time;
  return `${at.toLocaleDateString(texts.locale, { day: "numeric", month: "short" })} ${time}`;
}
