// The form in which a person gives a run a name, tags and notes.

import type { Dialog } from "@jupyterlab/apputils";
import { Widget } from "@lumino/widgets";
import { el } from "../../../live/src/shared/dom";
import type { Annotations, Row } from "../messages";
import type { Texts } from "../texts";
import { tagsIn } from "./tags";

// The same limits as in workbench/runs/folder/annotations.py.
const NAME = 80, NOTES = 3000, TAG = 40, TAGS = 20;

export class EditForm extends Widget implements Dialog.IBodyWidget<Annotations> {
  private readonly name = el("input", "jp-mod-styled", "", { type: "text", maxlength: String(NAME) });
  private readonly tags = el("input", "jp-mod-styled", "", { type: "text", maxlength: String((TAG + 2) * TAGS) });
  private readonly notes = el("textarea", "jp-mod-styled", "", { maxlength: String(NOTES), rows: "5" });

  constructor(row: Row, texts: Texts) {
    super();
    this.addClass("wb-side-form");
    [this.name.value, this.tags.value, this.notes.value] = [row.name, row.tags.join(", "), row.notes];
    for (const [text, control] of [[texts.name, this.name], [texts.tags, this.tags], [texts.notes, this.notes]] as const) {
      const label = el("label", "", text);
      label.append(control);
      this.node.append(label);
    }
  }

  getValue(): Annotations {
    return { name: this.name.value, notes: this.notes.value, tags: tagsIn(this.tags.value) };
  }
}
