// The banner of a panel whose kernel has ended. It also disables all controls.

import { copyText } from "./code-line";
import { el, setText } from "../shared/dom";
import type { Store } from "../data/store";
import { texts } from "../texts";

export class KernelEnded {
  readonly root = el("div", "wb-lost");
  private readonly code = el("code");
  private readonly again = el("span");

  /** help: how the view comes back. */
  constructor(private readonly store: Store, help: string = texts.kernel.help) {
    const copy = el("button", "wb-tool wb-lost-copy", texts.copy, { type: "button", title: texts.copyLine });
    copy.addEventListener("click", () => void copyText(this.code, copy));
    this.again.append(texts.kernel.showRun, this.code, " ", copy);
    this.root.append(
      el("b", "", texts.kernel.ended),
      el("span", "", help),
      this.again,
    );
    this.root.hidden = true;
  }

  /** Show the banner in this view, and take the controls away from clicks and keys. */
  draw(view: HTMLElement): void {
    if (!this.store.lost) return;
    const run = this.store.state.progress?.run ?? "";
    this.again.hidden = !/^[\w.-]+$/.test(run);
    setText(this.code, `bench.show(${JSON.stringify(run)})`);
    if (this.root.hidden) this.root.setAttribute("role", "alert");
    this.root.hidden = false;
    view.toggleAttribute("data-lost", true);
    for (const control of view.querySelectorAll<HTMLButtonElement>("button, input, select")) control.disabled ||= !this.root.contains(control);
    for (const handle of view.querySelectorAll<HTMLElement>(".wb-handle")) handle.inert = true;
  }
}
