// One fit in the table of runs: its numbers, its spark-line, its buttons. Deleting asks once more, in its place.

import { el, say } from "./dom";
import { spark } from "./spark";
import type { Store } from "./store";
import type { RunRow } from "./wire";

const ANSWER_MS = 10_000; // a deletion that takes longer can be turned away from
const SHAPES: Record<string, string> = { queued: "○", running: "▶", paused: "❚❚", finished: "✓", stopped: "■", failed: "✕" };

export class Row {
  readonly root: HTMLTableRowElement = el("tr");
  private readonly tick: HTMLInputElement;
  private readonly actions = el("td", "wb-run-actions");
  private readonly buttons = new Map<string, HTMLButtonElement>();
  private told = "";
  private asking = false;
  private deleting = false;

  constructor(
    private readonly store: Store,
    private readonly run: string,
    choose: (on: boolean) => void,
  ) {
    this.tick = el("input", "", "", { type: "checkbox", "aria-label": `Compare ${run}`, "data-what": "compare" });
    this.tick.addEventListener("change", () => choose(this.tick.checked));
    this.button("open", "Open", `Show ${run} in all cards, from its record`, () => store.request("show", { run }));
    this.button("continue", "Continue", `Continue from the end of ${run} in a new fit`, () => store.request("continue", { run }));
    this.button("export", "Export…", `See and write the script of ${run}`, () => store.request("export", { run }));
    this.button("delete", "Delete", `Delete ${run} for good`, () => this.ask());
    this.actions.append(...this.buttons.values());
    this.actions.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !this.asking || this.deleting) return;
      event.stopPropagation();
      this.keep();
    });
  }

  show(row: RunRow): void {
    const told = JSON.stringify(row);
    if (told === this.told) return;
    this.told = told;
    const live = ["queued", "running", "paused"].includes(row.status);
    for (const what of ["continue", "export", "delete"]) this.buttons.get(what)!.disabled = live;
    const name = el("th", "wb-run-name", row.run, { scope: "row" });
    if (row.from) name.append(el("span", "wb-run-from", `from ${row.from}`));
    const status = el("td", `wb-run-status wb-run-${row.status}`);
    status.append(el("i", "", SHAPES[row.status] ?? "", { "aria-hidden": "true" }), document.createTextNode(row.status));
    const drawn = el("td", "wb-run-spark");
    drawn.append(spark(row.spark, row.dots));
    const value = row.value === "" ? "–" : row.value;
    const cells = row.cells.map((text) => el("td", "wb-run-setting", text));
    const check = el("td", "wb-run-number", value, row.metric ? { title: row.metric } : {});
    if (row.metric && row.metric !== "val_loss") check.append(el("span", "wb-run-from", row.metric));
    const ticked = el("td");
    ticked.append(this.tick);
    const time = el("td", "wb-run-number wb-run-time", row.time, { title: `${row.step} updates` });
    const parts = [ticked, name, status, drawn, el("td", "wb-run-number", row.loss), check, ...cells, time, el("td", "wb-run-when", when(row.created))];
    const held = this.root.contains(document.activeElement) ? (document.activeElement as HTMLElement) : null;
    this.root.replaceChildren(...parts, this.actions);
    held?.focus(); // its place was taken and given back
  }

  mark(chosen: boolean, full: boolean): void {
    this.tick.checked = chosen;
    this.tick.disabled = full && !chosen;
    this.tick.title = this.tick.disabled ? "Five are compared already" : "Compare";
  }

  private button(what: string, text: string, title: string, clicked: () => void): void {
    const made = el("button", "wb-tool", text, { type: "button", title, "aria-label": `${text.replace("…", "")} ${this.run}`, "data-what": what });
    made.addEventListener("click", clicked);
    this.buttons.set(what, made);
  }

  private ask(): void {
    this.asking = true;
    const yes = el("button", "wb-tool wb-danger", "Delete", { type: "button", "aria-label": `Delete ${this.run} for good`, "data-what": "yes" });
    const no = el("button", "wb-tool", "Keep", { type: "button", "aria-label": `Keep ${this.run}`, "data-what": "no" });
    yes.addEventListener("click", () => {
      say(yes, "…"); // until the row goes, or the answer is that it stays
      this.deleting = no.disabled = true;
      setTimeout(() => (this.deleting = no.disabled = false), ANSWER_MS);
      this.store.request("delete", { run: this.run });
    }, { once: true });
    no.addEventListener("click", () => this.keep());
    this.actions.replaceChildren(el("span", "wb-run-ask", "Delete for good, checkpoints too?", { role: "alert" }), yes, no);
    no.focus();
  }

  /** Not deleted: by choice, or the bench refused it, and a notice says why. */
  keep(): void {
    if (!this.asking) return;
    this.asking = this.deleting = false;
    const mine = this.actions.contains(document.activeElement);
    this.actions.replaceChildren(...this.buttons.values());
    if (mine) this.buttons.get("delete")!.focus();
  }
}

function when(seconds: number): string {
  if (!seconds) return "";
  const at = new Date(1000 * seconds);
  const time = at.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  if (at.toDateString() === new Date().toDateString()) return time;
  return `${at.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${time}`;
}
