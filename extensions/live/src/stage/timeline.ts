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

  private item({ run, status, label, note, show, study }: Chip, isCurrent: boolean): HTMLElement {
    const item = el("li");
    const chip = el("button", "wb-chip", label, { type: "button", "data-run": run, "data-status": status, title: words.tooltip(run, texts.status[status]) });
    chip.append(el("i", "", DOTS[status], { "aria-hidden": "true" }));
    if (note) chip.append(el("small", "", words.note(note)));
    if (isCurrent) chip.setAttribute("aria-current", "true");
    if (study) chip.addEventListener("click", () => this.store.request("show_study", { study: run }));
    else if (show === null) chip.setAttribute("aria-disabled", "true");
    else chip.addEventListener("click", () => this.store.request("show", { run: show }));
    item.append(chip);
    return item;
  }
}
