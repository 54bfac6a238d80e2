// The button that opens the list of columns: any setting, metric, value of the model's function, time or tag.

import { el, focusIn } from "../shared/dom";
import type { Store } from "../data/store";
import { texts } from "../texts";

const { runs: words } = texts;
const MOST = 16; // as in workbench/ui/canvas/runs/runs_page.py

export class ColumnChoice {
  /** The button, and the list that it opens. */
  readonly open = el("button", "wb-tool", words.chooseColumns, { type: "button", "aria-expanded": "false", title: words.chooseColumnsTooltip });
  readonly list = el("div", "wb-columns", "", { role: "group", "aria-label": words.chooseColumns });
  private readonly search = el("input", "", "", { type: "search", placeholder: words.findColumn, "aria-label": words.findColumn });
  private readonly boxes = el("div", "wb-columns-boxes");
  private readonly automatic = el("button", "wb-tool", words.automaticColumns, { type: "button", title: words.automaticColumnsTooltip });
  private told = "";

  constructor(private readonly store: Store) {
    const head = el("div", "wb-columns-head");
    head.append(this.search, this.automatic);
    this.list.append(head, this.boxes);
    this.list.hidden = true;
    this.open.addEventListener("click", () => this.show(this.list.hidden));
    this.search.addEventListener("input", () => this.sift());
    this.automatic.addEventListener("click", () => this.store.request("see_runs", { columns: null }));
    this.list.addEventListener("keydown", (event) => {
      event.stopPropagation(); // single keys are commands of the notebook
      if (event.key !== "Escape") return;
      this.show(false);
      this.open.focus();
    });
  }

  /** Bring an open list up to date; the chosen columns are first. */
  draw(): void {
    const { columns = [], offered = [], automatic = true } = this.store.state.runs ?? {};
    this.automatic.setAttribute("aria-pressed", String(automatic));
    const told = JSON.stringify([columns, offered]);
    if (this.list.hidden || told === this.told) return;
    this.told = told;
    const held = focusIn(this.boxes)?.getAttribute("value");
    const rest = offered.filter((name) => !columns.includes(name) && name !== "run");
    this.boxes.replaceChildren(...[...columns, ...rest].map((name) => this.box(name, columns)));
    this.sift();
    if (held) this.boxes.querySelector<HTMLElement>(`input[value="${CSS.escape(held)}"]`)?.focus();
  }

  private show(on: boolean): void {
    this.list.hidden = !on;
    this.open.setAttribute("aria-expanded", String(on));
    if (!on) return;
    this.told = "";
    this.draw();
    this.search.focus();
  }

  private box(name: string, columns: string[]): HTMLElement {
    const label = el("label");
    const box = el("input", "", "", { type: "checkbox", value: name });
    box.checked = columns.includes(name);
    box.disabled = !box.checked && columns.length >= MOST;
    box.addEventListener("change", () => {
      const chosen = box.checked ? [...columns, name] : columns.filter((other) => other !== name);
      this.store.request("see_runs", { columns: chosen, start: this.store.state.runs?.start ?? 0 });
    });
    label.append(box, document.createTextNode(name));
    return label;
  }

  private sift(): void {
    const wanted = this.search.value.trim().toLowerCase();
    for (const label of this.boxes.children) (label as HTMLElement).hidden = !(label.textContent ?? "").toLowerCase().includes(wanted);
  }
}
