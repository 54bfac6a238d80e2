// One run in the table of runs: its name and numbers, its sparkline, its buttons.

import { el, focusIn } from "../shared/dom";
import { spark } from "./sparkline";
import type { Store } from "../data/store";
import type { RunRow } from "../data/messages";
import { texts } from "../texts";

const { runs: words } = texts;
const SHAPES: Record<string, string> = { queued: "○", running: "▶", paused: "❚❚", finished: "✓", stopped: "■", failed: "✕" };

type Refusal = (run: string, why: string) => string;

/** What a row asks of the table. */
export interface Table {
  choose(run: string, on: boolean): void;
  edit(run: string): void;
  remove(run: string): void;
}

export class Row {
  readonly root: HTMLTableRowElement = el("tr");
  private readonly tick: HTMLInputElement;
  private readonly pin: HTMLButtonElement;
  private readonly actions = el("td", "wb-run-actions");
  private readonly buttons = new Map<string, HTMLButtonElement>();
  private told = "";

  constructor(
    store: Store,
    private readonly run: string,
    table: Table,
  ) {
    this.tick = el("input", "", "", { type: "checkbox", "aria-label": words.selectLabel(run), title: words.selectTooltip, "data-what": "select" });
    this.tick.addEventListener("change", () => table.choose(run, this.tick.checked));
    this.pin = el("button", "wb-pin", "", { type: "button", "data-what": "pin", title: words.pinTooltip });
    this.pin.addEventListener("click", () => store.request("annotate", { run, pinned: this.pin.getAttribute("aria-pressed") !== "true" }));
    this.button("open", words.open, words.openTooltip(run), () => store.request("show", { run }));
    for (const what of ["continue", "rerun"] as const) {
      this.button(what, words[what], "", () => {
        if (!this.buttons.get(what)!.hasAttribute("aria-disabled")) store.request(what, { run });
      });
    }
    this.button("export", words.export, words.exportTooltip(run), () => store.request("export", { run }));
    this.button("edit", words.edit, words.editTooltip(run), () => table.edit(run));
    this.button("delete", words.delete, words.deleteTooltip(run), () => table.remove(run));
    this.actions.append(...this.buttons.values());
  }

  /** ended, unkept: why it cannot be continued, or repeated. */
  show(row: RunRow, ended: string, unkept: string, notes: string): void {
    const told = JSON.stringify([row, ended, unkept, notes]);
    if (told === this.told) return;
    this.told = told;
    const live = ["queued", "running", "paused"].includes(row.status);
    for (const what of ["export", "delete"]) this.buttons.get(what)!.disabled = live;
    this.allow("continue", ended, words.continueTooltip, words.notContinued, words.notContinuedLabel);
    this.allow("rerun", unkept, words.rerunTooltip, words.notRepeated, words.notRepeatedLabel);
    this.pin.textContent = row.pinned ? "★" : "☆";
    this.pin.setAttribute("aria-pressed", String(row.pinned));
    this.pin.setAttribute("aria-label", words.pinLabel(this.run));
    const status = el("td", `wb-run-status wb-run-${row.status}`);
    status.append(el("i", "", row.trouble ? "!" : SHAPES[row.status] ?? "", { "aria-hidden": "true" }), document.createTextNode(statusText(row.status)));
    if (row.trouble) {
      status.append(el("b", "wb-trouble", row.trouble[1]));
      status.dataset["trouble"] = row.trouble[0];
    }
    const drawn = el("td", "wb-run-spark");
    drawn.append(spark(row.spark, row.dots));
    const cells = row.cells.map((text) => el("td", "wb-run-setting", text));
    const check = el("td", "wb-run-number", row.value || texts.noNumber, row.metric ? { title: row.metric } : {});
    if (row.metric && row.metric !== "val_loss") check.append(el("span", "wb-run-from", row.metric));
    const ticked = el("td");
    ticked.append(this.tick, this.pin);
    const time = el("td", "wb-run-number wb-run-time", row.time, { title: texts.updates(row.step) });
    const loss = el("td", "wb-run-number", row.loss);
    const parts = [ticked, this.name(row, notes), status, drawn, loss, check, ...cells, time, el("td", "wb-run-when", when(row.created))];
    const held = focusIn(this.root);
    this.root.replaceChildren(...parts, this.actions);
    held?.focus(); // its place was taken and given back
  }

  mark(chosen: boolean): void {
    this.tick.checked = chosen;
  }

  /** The id, or the name and the id; where it continues another one; its place in a study; notes and tags. */
  private name(row: RunRow, notes: string): HTMLElement {
    const cell = el("th", "wb-run-name", row.name || row.run, { scope: "row" });
    if (row.name) cell.append(el("span", "wb-run-from", row.run));
    if (row.from) cell.append(el("span", "wb-run-from", words.from(row.from)));
    if (row.study) cell.append(el("span", "wb-run-from", row.study));
    if (notes) cell.append(el("span", "wb-run-from wb-run-notes", notes, { title: notes }));
    if (row.tags.length) {
      const tags = el("span", "wb-run-tags");
      tags.append(...row.tags.map((tag) => el("span", "wb-run-tag", tag)));
      cell.append(tags);
    }
    return cell;
  }

  /** A button keeps its place in the order of the keyboard where its action is not possible: its title gives the reason. */
  private allow(what: "continue" | "rerun", why: string, tooltip: (run: string) => string, refusal: Refusal, label: Refusal): void {
    const button = this.buttons.get(what)!;
    button.title = why ? refusal(this.run, why) : tooltip(this.run);
    button.setAttribute("aria-label", why ? label(this.run, why) : words.actionLabel(words[what], this.run));
    if (why) button.setAttribute("aria-disabled", "true");
    else button.removeAttribute("aria-disabled");
  }

  private button(what: string, text: string, title: string, clicked: () => void): void {
    const made = el("button", "wb-tool", text, { type: "button", title, "aria-label": words.actionLabel(text, this.run), "data-what": what });
    made.addEventListener("click", clicked);
    this.buttons.set(what, made);
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
