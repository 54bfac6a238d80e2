// The script of a run as it would be written: to read and to copy, before it is saved.

import { el, say } from "./dom";
import { copyText } from "./code";
import type { Store } from "./store";
import type { ScriptPart } from "./wire";

export class Script {
  readonly root = el("section", "wb-card wb-script", "", { "aria-label": "The script" });
  private readonly title = el("h4");
  private readonly words = el("span", "wb-key-item");
  private readonly copy = el("button", "wb-tool", "copy", { type: "button", title: "Copy the whole script" });
  private readonly code = el("pre", "", "", { tabindex: "0", role: "region", "aria-label": "The script's text" });

  constructor(private readonly store: Store) {
    const head = el("header", "wb-head");
    const tools = el("span", "wb-tools");
    tools.append(this.copy);
    head.append(this.title, this.words, tools);
    this.root.append(head, this.code);
    this.root.hidden = true;
    this.copy.addEventListener("click", () => void copyText(this.code, this.copy));
    this.draw();
  }

  /** Until all parts of a script are there, what was shown before it stays. */
  draw(): void {
    const { script } = this.store.state;
    if (!script) {
      this.root.hidden = true;
      return;
    }
    const parts = Array.from({ length: script.parts }, (_, i) => this.part(i));
    if (!parts.every((part) => part?.of === script.of)) return;
    this.root.hidden = false;
    say(this.title, `Script of ${script.run}`);
    say(this.words, `${script.lines} lines, as they would be written`);
    say(this.code, parts.map((part) => part?.text).join(""));
  }

  private part(number: number): ScriptPart | null | undefined {
    return (this.store.state as Record<string, unknown>)[`script.${number}`] as ScriptPart | null | undefined;
  }
}
