// The card that shows where the time of a run goes: a bar with a piece for each part, and the shares.

import { Card } from "../shared/card";
import { el, setText } from "../shared/dom";
import type { Store } from "../data/store";
import { texts } from "../texts";

/** Below this share a part has no place of its own in the words. */
const LEAST = 0.01;
/** The colours of the bar's pieces by part, so that a part keeps its colour when the order changes. */
const TONES = ["data", "transfer", "forward", "backward", "sync", "optimizer", "validation", "checkpoints", "logging", "hooks", "workbench"];

export class TimeSpent {
  readonly card = new Card(texts.time.title, texts.time.hint, "time-card");
  private readonly root = el("div", "wb-time");
  private readonly title = el("span", "wb-time-title");
  private readonly bar = el("div", "wb-time-bar", "", { "aria-hidden": "true" });
  private readonly words = el("ul", "wb-time-words");

  constructor(private readonly store: Store) {
    this.root.append(this.title, this.bar, this.words);
    this.card.body.append(this.root);
  }

  draw(): void {
    const time = this.store.state.time ?? null;
    this.card.empty = time === null;
    if (time === null) return;
    setText(this.title, time.title);
    this.bar.replaceChildren(...time.shares.map(([part, share]) => {
      const piece = el("i", tone(part), "", { title: texts.time.part(part, percent(share)) });
      piece.style.flexGrow = String(share);
      return piece;
    }));
    this.words.replaceChildren(...time.shares.filter(([, share]) => share >= LEAST).map(([part, share]) => {
      const item = el("li");
      item.append(el("i", `wb-time-swatch ${tone(part)}`), `${part} `, el("b", "", percent(share)));
      return item;
    }));
  }
}

function tone(part: string): string {
  const place = TONES.indexOf(part);
  return `wb-tone${place < 0 ? TONES.length - 1 : place}`;
}

function percent(share: number): string {
  return texts.percent(Math.round(100 * share));
}
