// One plot's frame: a title, a key that doubles as the readout under the cursor, a body, a caption.

import { el, say } from "./dom";

export interface KeyItem {
  name: string;
  /** A CSS class that draws the swatch: "line", "faint", "dot", … */
  swatch: string;
}

export class Card {
  readonly root: HTMLElement;
  readonly body = el("div", "wb-body");
  readonly tools = el("span", "wb-tools");
  /** Under the plot: the caption, and what belongs beside it. */
  readonly foot = el("div", "wb-foot");
  private readonly key = el("span", "wb-key");
  private readonly caption = el("div", "wb-caption");
  private readonly hintLine: HTMLElement;
  private readonly values = new Map<string, HTMLElement>();

  constructor(title: string, hint: string, name: string) {
    this.root = el("section", `wb-card wb-${name}`, "", { "aria-label": title });
    const head = el("header", "wb-head");
    head.append(el("h4", "", title), this.key, this.tools);
    this.hintLine = el("div", "wb-hint", hint);
    this.foot.append(this.caption);
    this.root.append(head, this.hintLine, this.body, this.foot);
    this.empty = true;
  }

  /** With nothing to draw a card is one calm line that says what will appear. */
  set empty(is: boolean) {
    this.root.classList.toggle("wb-empty", is);
  }

  setKey(items: KeyItem[]): void {
    this.key.replaceChildren();
    this.values.clear();
    for (const item of items) {
      const holder = el("span", "wb-key-item");
      const value = el("b");
      holder.append(el("i", `wb-swatch wb-swatch-${item.swatch}`), document.createTextNode(item.name), value);
      this.key.append(holder);
      this.values.set(item.name, value);
    }
  }

  setValue(name: string, text: string): void {
    const target = this.values.get(name);
    if (target) say(target, text);
  }

  /** What the key says now. */
  words(): string {
    return [...this.values].filter(([, value]) => value.textContent).map(([name, value]) => `${name} ${value.textContent}`).join(", ");
  }

  setCaption(text: string): void {
    say(this.caption, text);
  }
}
