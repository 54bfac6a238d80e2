// A card of the canvas: a title with tools, a key that shows the values under the cursor, a body, a caption.

import { el, setText } from "./dom";
import { texts } from "../texts";

export interface KeyItem {
  name: string;
  /** A CSS class that draws the swatch: "line", "faint", "dot", … */
  swatch: string;
  /** So many digits wide is the place of its value, whatever it is: nothing moves as values come and go. */
  room?: number;
  /** What follows its value. */
  note?: string;
  /** Below the plot, after the caption. */
  below?: boolean;
}

export class Card {
  readonly root: HTMLElement;
  readonly head = el("header", "wb-head");
  readonly body = el("div", "wb-body");
  readonly tools = el("span", "wb-tools");
  /** Under the plot: the caption, and what belongs beside it. */
  readonly foot = el("div", "wb-foot");
  readonly key = el("div", "wb-key");
  /** What the values of the key belong to: it stands beside the title, where it moves nothing as it comes and goes. */
  private readonly at = el("span", "wb-at");
  private readonly caption = el("div", "wb-caption");
  private readonly below = el("div", "wb-below");
  private readonly hintLine: HTMLElement;
  private readonly values = new Map<string, HTMLElement>();

  constructor(title: string, hint: string, name: string) {
    this.root = el("section", `wb-card wb-${name}`, "", { "aria-label": title });
    this.head.append(el("h4", "", title), this.at, this.tools);
    this.hintLine = el("div", "wb-hint", hint);
    this.foot.append(this.caption, this.below);
    this.root.append(this.head, this.hintLine, this.key, this.body, this.foot);
    this.empty = true;
  }

  /** A card with nothing to draw is one line: its title, and what will appear. */
  set empty(is: boolean) {
    this.root.classList.toggle("wb-empty", is);
  }

  setKey(items: KeyItem[]): void {
    this.key.replaceChildren();
    this.below.replaceChildren();
    this.values.clear();
    for (const item of items) {
      const holder = el("span", "wb-key-item");
      const value = el("b");
      holder.append(el("i", `wb-swatch wb-swatch-${item.swatch}`), el("span", "wb-key-name", item.name, { title: item.name }), value);
      if (item.note) holder.append(el("span", "", item.note));
      (item.below ? this.below : this.key).append(holder);
      this.values.set(item.name, value);
      if (item.room) this.setRoom(item.name, item.room);
    }
  }

  /** Make the place of a value so many digits wide. */
  setRoom(name: string, digits: number): void {
    const target = this.values.get(name);
    if (target) target.style.width = `${digits}ch`;
  }

  setValue(name: string, text: string): void {
    const target = this.values.get(name);
    if (target) setText(target, text);
  }

  /** The key with its present values, to be announced. */
  reading(): string {
    const shown = [...this.values].filter(([, value]) => value.textContent);
    return texts.list(shown.map(([name, value]) => texts.plot.value(name, value.textContent ?? "")));
  }

  /** The same, and what they belong to. */
  placed(): string {
    return texts.list([this.reading(), this.at.textContent ?? ""].filter(Boolean));
  }

  setAt(text: string): void {
    setText(this.at, text);
  }

  setCaption(text: string): void {
    setText(this.caption, text);
  }
}
