// Shows the line of code that does the same as the last click, to copy.

import { el, setText } from "../shared/dom";
import type { Store } from "../data/store";
import { texts } from "../texts";

export class CodeLine {
  readonly root = el("div", "wb-code");
  private readonly code = el("code");
  private readonly button = el("button", "wb-tool", texts.copy, { type: "button", title: texts.copyLine });

  constructor(private readonly store: Store) {
    this.root.append(el("span", "", texts.codeLine.label), this.code, this.button);
    this.button.addEventListener("click", () => void this.copy());
    this.draw();
  }

  draw(): void {
    const code = this.store.state.code ?? "";
    this.root.hidden = code === "";
    setText(this.code, code);
  }

  private copy(): Promise<void> {
    return copyText(this.code, this.button);
  }
}

/** Copy what `code` shows; `button` says how that went, also to a screen reader. */
export async function copyText(code: HTMLElement, button: HTMLElement): Promise<void> {
  const copied = await write(code);
  button.setAttribute("aria-live", "polite");
  setText(button, copied ? texts.copied : texts.copyByKey);
  setTimeout(() => setText(button, texts.copy), 1500);
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
