// What goes wrong in a run, what slows it down, and where its time goes.

import { Card } from "./card";
import { el, say } from "./dom";
import type { Store } from "./store";
import { TimeShares } from "./timeshares";
import type { Finding } from "./wire";

const WORDS = { error: "✕ wrong", warning: "! look", info: "i note" } as const;

export class Health {
  readonly card = new Card("Health", "During a fit this says what goes wrong or slows it down, and what to do.", "health");
  private readonly list = el("ul", "wb-findings", "", { "aria-live": "polite", "aria-relevant": "additions" });
  private readonly well = el("li", "wb-well", "Nothing to report.");
  private readonly time: TimeShares;
  private lines = new Map<string, Line>();

  constructor(private readonly store: Store) {
    this.time = new TimeShares(store);
    this.card.body.append(this.list, this.time.root);
  }

  draw(): void {
    const { health } = this.store.state;
    this.card.empty = health == null;
    this.time.draw();
    const told = health ?? [];
    if (health?.length === 0) this.list.append(this.well);
    else this.well.remove();
    const before = this.lines;
    this.lines = new Map();
    for (const finding of told) {
      let about = key(finding);
      while (this.lines.has(about)) about += " again";
      const line = before.get(about) ?? new Line();
      line.show(finding);
      this.lines.set(about, line);
    }
    for (const [about, line] of before) if (!this.lines.has(about)) line.root.remove();
    [...this.lines.values()].forEach(({ root }, i) => {
      if (this.list.children[i] !== root) this.list.insertBefore(root, this.list.children[i] ?? null); // whole, as it is announced
    });
  }
}

/** What a finding is of, whatever its numbers are by now and wherever among the others it stands. */
function key({ level, text }: Finding): string {
  return `${level} ${text.replace(/\d+/g, "")}`;
}

/** A finding. Its line stays while its numbers change: a screen reader announces new lines only. */
class Line {
  readonly root = el("li");
  private readonly kind = el("b");
  private readonly text = el("span");
  private readonly remedy = el("span", "wb-remedy");

  constructor() {
    const words = el("span", "wb-finding-text");
    words.append(this.text, " ", this.remedy);
    this.root.append(this.kind, words);
  }

  show({ level, text, remedy }: Finding): void {
    this.root.className = `wb-finding wb-finding-${level}`;
    say(this.kind, WORDS[level]);
    say(this.text, sentence(text));
    say(this.remedy, remedy ? sentence(remedy) : "");
  }
}

function sentence(text: string): string {
  const begun = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.?!]$/.test(begun) ? begun : `${begun}.`;
}
