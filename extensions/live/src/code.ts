// "The same in code": the line that stands for the last click, to copy.

import { el, say } from "./dom";
import type { Store } from "./store";

export class CodeLine {
  readonly root = el("div", "wb-code");
  private readonly code = el("code");
  private readonly button = el("button", "wb-tool", "copy", { type: "button", title: "Copy this line" });

  constructor(private readonly store: Store) {
    this.root.append(el("span", "", "the same in code"), this.code, this.button);
    this.button.addEventListener("click", () => void this.copy());
    this.draw();
  }

  draw(): void {
    const code = this.store.state.code ?? "";
    this.root.hidden = code === "";
    say(this.code, code);
  }

  private copy(): Promise<void> {
    return copyText(this.code, this.button);
  }
}

/** Copy what `code` shows; `button` says how that went, also to a screen reader. */
export async function copyText(code: HTMLElement, button: HTMLElement): Promise<void> {
  const copied = await write(code);
  button.setAttribute("aria-live", "polite");
  say(button, copied ? "copied" : "press Ctrl+C");
  setTimeout(() => say(button, "copy"), 1500);
}

// A page that is not on https has no clipboard; there the line is selected, for the person to copy.
async function write(code: HTMLElement): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(code.textContent ?? "");
    return true;
  } catch {
    getSelection()?.selectAllChildren(code);
    return false;
  }
}
