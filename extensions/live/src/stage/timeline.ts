// The timeline: a chip for each job of the bench, in the order in which they ran. A click puts that job on the stage.

import { el, focusIn } from "../shared/dom";
import type { Store } from "../data/store";
import type { Chip } from "../data/messages";
import { DOTS } from "../status/progress";
import { texts } from "../texts";

const { timeline: words } = texts;

export class Timeline {
  readonly root = el("nav", "wb-timeline", "", { "aria-label": words.label });
  private readonly list = el("ol");
  private readonly restore = el("button", "wb-tool", words.restore, { type: "button" });
  private told = "";
  private chosen = "";

  constructor(private readonly store: Store) {
    this.root.append(this.list, this.restore);
    const point = (event: Event) => this.point(event.target as Element);
    for (const type of ["pointerover", "focusin"]) this.list.addEventListener(type, point);
    for (const type of ["pointerleave", "focusout"]) this.list.addEventListener(type, () => store.pointAt(""));
    this.restore.addEventListener("click", () => store.request("restore", { run: this.chosen }));
    this.draw();
  }

  draw(): void {
    const { timeline: chips = [], opened, stage, study } = this.store.state;
    const staged = stage === "study" ? study?.id : undefined;
    const now = JSON.stringify([chips, opened, staged]);
    if (now === this.told) return;
    this.told = now;
    this.root.hidden = chips.length === 0;
    const current = chips.find(({ run, show }) => {
      if (staged) return run === staged;
      return opened ? run === opened.run : show === "";
    });
    const held = focusIn(this.list)?.dataset["run"];
    this.list.replaceChildren(...chips.map((chip) => this.item(chip, chip === current)));
    if (held) this.list.querySelector<HTMLElement>(`[data-run="${CSS.escape(held)}"]`)?.focus();
    this.chosen = current?.run ?? "";
    this.restore.hidden = !current?.restores;
    this.restore.title = words.restoreTooltip(current?.restores ?? "");
  }

  /** Lay the curve of the job under the mouse over the stage's plot, unless it is what the plot shows. */
  private point(part: Element): void {
    const pointed = part.closest<HTMLElement>(".wb-chip");
    const chip = (this.store.state.timeline ?? []).find(({ run }) => run === pointed?.dataset["run"]);
    const fits = chip && chip.run !== this.chosen && chip.curve === this.store.state.stage;
    this.store.pointAt(fits ? chip.run : "", chip?.curve);
  }

  private item({ run, status, trouble, label, note, show, study }: Chip, isCurrent: boolean): HTMLElement {
    const item = el("li");
    const state = [texts.status[status], trouble?.[1]].filter(Boolean).join(", ");
    const chip = el("button", "wb-chip", label, { type: "button", "data-run": run, "data-status": status, title: words.tooltip(run, state) });
    chip.append(el("i", "", trouble ? "!" : DOTS[status], { "aria-hidden": "true" }));
    if (trouble) {
      chip.dataset["trouble"] = trouble[0];
      chip.append(el("b", "wb-trouble", trouble[1]));
    }
    if (note) chip.append(el("small", "", words.note(note)));
    if (isCurrent) chip.setAttribute("aria-current", "true");
    if (study) chip.addEventListener("click", () => this.store.request("show_study", { study: run }));
    else if (show === null) chip.setAttribute("aria-disabled", "true");
    else chip.addEventListener("click", () => this.store.request("show", { run: show }));
    item.append(chip);
    return item;
  }
}
