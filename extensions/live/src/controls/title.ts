// The title of a panel: what it is of, and the facts of that.

import { el, setText } from "../shared/dom";
import type { Store } from "../data/store";
import { texts } from "../texts";

export class Title {
  readonly root = el("div", "wb-title");
  private readonly name = el("b");
  private readonly facts = el("span");

  constructor(private readonly store: Store) {
    this.root.append(this.name, this.facts);
    this.draw();
  }

  draw(): void {
    const [name = "", facts = ""] = this.store.state.title ?? [];
    this.root.hidden = !name;
    setText(this.name, name);
    setText(this.facts, texts.separator + facts);
  }
}
