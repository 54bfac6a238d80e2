// How much of the differences between trials each dimension explains, with its interval.

import { Card } from "../shared/card";
import { el } from "../shared/dom";
import type { Store } from "../data/store";
import { texts } from "../texts";

const { study: words } = texts;
const NOISE = 0.01; // an interval that reaches this low may be chance

export class Importance {
  readonly card = new Card(words.importance, words.importanceHint, "study-importance");
  private readonly list = el("ul", "wb-study-shares");
  private told = "";

  constructor(private readonly store: Store) {
    this.card.body.append(this.list);
    this.card.setCaption(words.importanceCaption);
  }

  draw(): void {
    const shares = this.store.state.study_importance ?? [];
    const told = JSON.stringify(shares);
    if (told === this.told) return;
    this.told = told;
    this.card.empty = shares.length === 0;
    const percent = (share: number) => texts.percent(Math.round(100 * share));
    this.list.replaceChildren(...shares.map(({ name, low, share, high }) => {
      const [item, bar, interval] = [el("li"), el("span", "wb-study-share"), el("b")];
      const filled = el("i");
      filled.style.width = `${100 * share}%`;
      Object.assign(interval.style, { left: `${100 * low}%`, width: `${100 * Math.max(0, high - low)}%` });
      bar.append(filled, interval);
      const doubtful = low < NOISE;
      item.toggleAttribute("data-noise", doubtful);
      item.append(el("span", "wb-study-share-name", name, { title: name }), bar, el("span", "wb-study-share-value", doubtful ? words.noiseShare(percent(share)) : percent(share), { title: texts.range(percent(low), percent(high)) }));
      return item;
    }));
  }
}
