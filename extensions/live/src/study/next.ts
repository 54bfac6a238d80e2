// What a study suggests to do next: sentences, each with the button whose face is the line of code that it runs.

import { Card } from "../shared/card";
import { el, focusIn } from "../shared/dom";
import type { Store } from "../data/store";
import { texts } from "../texts";
import { carriesOut } from "./data";

const { study: words } = texts;

export class Next {
  readonly card = new Card(words.next, words.nextHint, "study-next");
  private readonly list = el("ul", "wb-study-words");
  private told = "";

  constructor(private readonly store: Store) {
    this.card.body.append(this.list);
  }

  draw(): void {
    const sentences = this.store.state.study_words ?? [];
    const told = JSON.stringify(sentences);
    if (told === this.told) return;
    this.told = told;
    this.card.empty = sentences.length === 0;
    const held = focusIn(this.list)?.textContent;
    this.list.replaceChildren(...sentences.map(({ text, code, runs }) => {
      const item = el("li", "", text);
      if (!code) return item;
      const made = runs ? carriesOut(this.store, el("button", "wb-study-code", code, { type: "button", title: words.run(code) }), () => code) : el("code", "", code);
      item.append(" ", made);
      return item;
    }));
    if (held) [...this.list.querySelectorAll("button")].find((button) => button.textContent === held)?.focus();
  }
}
