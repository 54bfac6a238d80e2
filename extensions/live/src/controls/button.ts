// A button of the panel: Python says its text and whether it has an effect, and hears when it is pressed.

import { el, setText } from "../shared/dom";
import type { Store } from "../data/store";

export class PanelButton {
  readonly root: HTMLButtonElement;

  constructor(private readonly store: Store, private readonly name: string, className = "") {
    this.root = el("button", `wb-button ${className}`.trim(), "", { type: "button", "data-button": name });
    this.root.addEventListener("click", () => store.request("press", { button: name }));
    this.draw();
  }

  /** A button that has no effect now keeps its place and the keyboard's focus; one that Python does not name is not shown. */
  draw(): void {
    const shown = this.store.state.buttons?.[this.name];
    this.root.hidden = shown?.visible !== true;
    if (shown === undefined) return;
    setText(this.root, shown.text);
    this.root.title = shown.tooltip;
    this.root.disabled = shown.disabled || this.store.lost;
    if (shown.off) this.root.setAttribute("aria-disabled", "true");
    else this.root.removeAttribute("aria-disabled");
    if (shown.pressed !== undefined) this.root.setAttribute("aria-pressed", String(shown.pressed));
  }
}
