// What the run says of itself, in words and nothing else: calm while all is well.

import { Card } from "./card";
import { el } from "./dom";
import type { Store } from "./store";

const WORDS = { error: "✕ wrong", warning: "! look", info: "i note" } as const;

export class Health {
  readonly card = new Card("Health", "During a fit this says what goes wrong or slows it down, and what to do.", "health");
  private readonly list = el("ul", "wb-findings", "", { "aria-live": "polite" });

  constructor(private readonly store: Store) {
    this.card.body.append(this.list);
  }

  draw(): void {
    const { health } = this.store.state;
    this.card.empty = health === undefined;
    const lines = (health ?? []).map(({ level, text, remedy }) => {
      const line = el("li", `wb-finding wb-finding-${level}`);
      const words = el("span", "wb-finding-text", sentence(text));
      if (remedy) words.append(" ", el("span", "wb-remedy", sentence(remedy)));
      line.append(el("b", "", WORDS[level]), words);
      return line;
    });
    if (health?.length === 0) lines.push(el("li", "wb-well", "Nothing to report."));
    this.list.replaceChildren(...lines);
  }
}

function sentence(text: string): string {
  const begun = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.?!]$/.test(begun) ? begun : `${begun}.`;
}
