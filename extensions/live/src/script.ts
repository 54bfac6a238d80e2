// The script of a run as it would be written: to read and to copy, before it is saved.

import { el, say } from "./dom";
import { copyText } from "./code";
import type { Store } from "./store";

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
    this.copy.addEventListener("click", () => void copyText(this.code, this.copy));
    this.draw();
  }

  draw(): void {
    const { state } = this.store;
    const parts = state.script ? Array.from({ length: state.script.parts }, (_, i) => this.part(i)) : [];
    const whole = parts.length > 0 && parts.every((part) => part !== undefined);
    this.root.hidden = !whole;
    if (!whole || !state.script) return;
    say(this.title, `Script of ${state.script.run}`);
    say(this.words, `${state.script.lines} lines, as they would be written`);
    say(this.code, parts.join(""));
  }

  private part(number: number): string | undefined {
    return (this.store.state as Record<string, unknown>)[`script.${number}`] as string | undefined;
  }
}
