// The form in which a person gives a run a name, tags and notes.

import type { Dialog } from "@jupyterlab/apputils";
import { Widget } from "@lumino/widgets";
import { el } from "../../../live/src/shared/dom";
import { changesOf, tagsIn, type Edited } from "../../../live/src/shared/edited";
import type { Annotations, Row } from "../messages";
import type { Texts } from "../texts";

// The same limits as in workbench/runs/folder/annotations.py.
const NAME = 80, NOTES = 3000, TAG = 40, TAGS = 20;

export class EditForm extends Widget implements Dialog.IBodyWidget<Annotations> {
  private readonly name = el("input", "jp-mod-styled", "", { type: "text", maxlength: String(NAME) });
  private readonly tags = el("input", "jp-mod-styled", "", { type: "text", maxlength: String((TAG + 2) * TAGS) });
  private readonly notes = el("textarea", "jp-mod-styled", "", { maxlength: String(NOTES), rows: "5" });
  private readonly before: Edited;

  /** typed: what the person typed into an earlier form, before somebody else changed the same fields of the row. */
  constructor(row: Row, texts: Texts, typed: Annotations = {}) {
    super();
    this.addClass("wb-side-form");
    this.fill(row);
    this.before = this.now();
    this.fill({ ...row, ...typed });
    const now = { name: row.name, tags: row.tags.join(", "), notes: row.notes };
    const theirs = (["name", "tags", "notes"] as const).filter((name) => name in typed).map((name) => now[name]);
    if (theirs.length > 0) this.node.append(el("p", "wb-side-stale", texts.changedMeanwhile(theirs.join(" · ")), { role: "alert" }));
    for (const [text, control] of [[texts.name, this.name], [texts.tags, this.tags], [texts.notes, this.notes]] as const) {
      const label = el("label", "", text);
      label.append(control);
      this.node.append(label);
    }
  }

  /** What the person changed: the rest may have been changed elsewhere meanwhile. */
  getValue(): Annotations {
    return changesOf(this.before, this.now());
  }

  private fill({ name, tags, notes }: Edited): void {
    [this.name.value, this.tags.value, this.notes.value] = [name, tags.join(", "), notes];
  }

  private now(): Edited {
    return { name: this.name.value, notes: this.notes.value, tags: tagsIn(this.tags.value) };
  }
}
