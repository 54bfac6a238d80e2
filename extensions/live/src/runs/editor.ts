// The row of the table in which a person gives a run a name, tags and notes.

import { el } from "../shared/dom";
import { changesOf, tagsIn, type Edited } from "../shared/edited";
import type { Store } from "../data/store";
import type { RunRow } from "../data/messages";
import { texts } from "../texts";

const { runs: words } = texts;
// The same limits as in workbench/runs/folder/annotations.py.
const NAME = 80, NOTES = 3000, TAG = 40, TAGS = 20;

export class Editor {
  readonly root = el("tr", "wb-run-edit");

  constructor(store: Store, row: RunRow, notes: string, columns: number, done: () => void) {
    const name = el("input", "", "", { type: "text", maxlength: String(NAME), "data-what": "name" });
    const tags = el("input", "", "", { type: "text", maxlength: String((TAG + 2) * TAGS), placeholder: words.tagsPlaceholder });
    const text = el("textarea", "", "", { maxlength: String(NOTES), rows: "3" });
    [name.value, tags.value, text.value] = [row.name, row.tags.join(", "), notes];
    const now = (): Edited => ({ name: name.value, notes: text.value, tags: tagsIn(tags.value) });
    const before = now();
    const save = el("button", "wb-tool", words.save, { type: "submit" });
    const cancel = el("button", "wb-tool", words.cancel, { type: "button" });
    const form = el("form", "", "", { "aria-label": words.editForm(row.run) });
    form.append(labelled(words.name, name), labelled(words.tags, tags), labelled(words.notes, text), save, cancel);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const changes = changesOf(before, now()); // the rest may have been changed elsewhere meanwhile
      if (Object.keys(changes).length > 0) store.request("annotate", { run: row.run, ...changes });
      done();
    });
    cancel.addEventListener("click", done);
    // Single keys are commands of the notebook where they reach it.
    this.root.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key === "Escape") done();
    });
    const cell = el("td", "", "", { colspan: String(columns) });
    cell.append(form);
    this.root.append(cell);
  }

  focus(): void {
    this.root.querySelector("input")?.focus();
  }
}

function labelled(text: string, control: HTMLElement): HTMLElement {
  const label = el("label", "", text);
  label.append(control);
  return label;
}
