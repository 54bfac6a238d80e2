// The value of each trial over each dimension of the space. A range is narrowed and widened here: by its two handles, by a brush, by keys.

import { Card } from "../shared/card";
import { el, focusIn, setText } from "../shared/dom";
import type { Store } from "../data/store";
import { texts } from "../texts";
import { carriesOut, type Selection, type StudyData } from "./data";
import { Slice } from "./slice";

const { study: words } = texts;

export class Slices {
  readonly card = new Card(words.slices, words.slicesHint, "study-slices");
  private readonly grid = el("div", "wb-study-slices");
  private readonly draft = el("div", "wb-study-draft", "", { role: "status" });
  private readonly code = el("button", "wb-study-code", "", { type: "button" });
  private readonly undo = el("button", "wb-tool", words.undo, { type: "button" });
  private slices: Slice[] = [];
  private told = "";

  constructor(store: Store, private readonly data: StudyData, private readonly selection: Selection) {
    carriesOut(store, this.code, () => this.line);
    this.code.addEventListener("click", () => this.forget());
    this.undo.addEventListener("click", () => this.forget());
    this.draft.append(el("span", "", words.draft), this.code, this.undo);
    this.card.body.append(this.grid, this.draft);
  }

  draw(): void {
    const { axes } = this.data;
    const trials = this.data.trials.filter((trial) => trial.value !== null || trial.infeasible);
    this.card.empty = axes.length === 0 || !this.data.head;
    const told = JSON.stringify(axes);
    if (told !== this.told) {
      this.told = told; // a changed range is the new one, whatever was about to be asked for
      this.destroy();
      this.slices = axes.map((axis, i) => new Slice(axis, i, this.data, this.selection, () => this.offer()));
      this.grid.replaceChildren(...this.slices.map((slice) => slice.root));
    }
    this.slices.forEach((slice) => slice.draw(trials));
    this.offer();
  }

  destroy(): void {
    this.slices.forEach((slice) => slice.destroy());
  }

  private get line(): string {
    return `study.space(${this.slices.flatMap((slice) => slice.argument ?? []).join(", ")})`;
  }

  private offer(): void {
    const drafts = this.slices.some((slice) => slice.argument !== null);
    const held = focusIn(this.draft) !== null;
    this.draft.toggleAttribute("data-empty", !drafts);
    for (const button of [this.code, this.undo]) button.hidden = !drafts;
    setText(this.draft.firstElementChild as HTMLElement, drafts ? words.draft : this.data.head?.calls.includes("space") === false ? words.slicesKey : words.slicesCaption);
    if (drafts) setText(this.code, this.line);
    if (held && !drafts) this.grid.querySelector<HTMLElement>("[tabindex]")?.focus();
  }

  private forget(): void {
    this.slices.forEach((slice) => slice.forget());
    this.offer();
  }
}
