// The line above the cards while they show a recorded run, with a button back to the live one.

import type { Store } from "../data/store";
import { el, setText, focusIn } from "../shared/dom";
import { texts } from "../texts";

export class RecordedRun {
  readonly root = el("div", "wb-opened", "", { role: "status" });
  private readonly title = el("span");
  private readonly back = el("button", "wb-tool", texts.runs.back, { type: "button", title: texts.runs.backTooltip });

  private run = "";

  /** left: called with the run when the person has gone back by keyboard. */
  constructor(private readonly store: Store, private readonly left: (run: string) => void) {
    this.root.append(this.title, this.back);
    this.back.addEventListener("click", () => store.request("show", { run: "" }));
    this.draw();
  }

  draw(): void {
    const { opened } = this.store.state;
    const held = focusIn(this.root) !== null;
    this.root.hidden = !opened;
    setText(this.title, opened ? texts.runs.recorded(opened.run) : "");
    if (!opened && held) this.left(this.run);
    this.run = opened?.run ?? "";
  }
}
