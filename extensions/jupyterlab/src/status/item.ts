// The status bar's item: the run that trains now, how far it is, and how long it still takes; a click opens it.

import { Widget } from "@lumino/widgets";
import { el, setText } from "../../../live/src/shared/dom";
import type { Client } from "../client";
import type { Ref, Row } from "../messages";
import { lineOf, shapeOf, trainingNow } from "../runs/words";
import type { Texts } from "../texts";

export class StatusItem extends Widget {
  private readonly button = el("button", "wb-status-button", "", { type: "button" });
  private readonly shape = el("span", "wb-status-shape", "", { "aria-hidden": "true" });
  private readonly words = el("span");
  private readonly bar = el("span", "wb-status-bar", "", { "aria-hidden": "true" });
  private readonly fill = el("i");
  private rows: Row[] = [];

  constructor(private readonly client: Client, private readonly texts: Texts, open: (ref: Ref) => void) {
    super();
    this.addClass("wb-status");
    this.bar.append(this.fill);
    this.button.append(this.shape, this.words, this.bar);
    this.node.append(this.button);
    this.button.addEventListener("click", () => {
      const [row] = this.rows;
      if (row !== undefined) open({ root: row.root, run: row.run });
    });
    client.events.connect(this.draw, this);
    client.linked.connect(this.draw, this);
    this.draw();
  }

  get isActive(): boolean {
    return this.rows.length > 0 && this.client.link === "open";
  }

  private draw(): void {
    this.rows = trainingNow(this.client.live.values());
    const [row] = this.rows;
    if (row === undefined) return;
    const { texts } = this;
    const several = this.rows.length > 1 ? ` (${texts.statusMany(this.rows.length)})` : "";
    setText(this.shape, shapeOf(row));
    setText(this.words, lineOf(row, texts) + several);
    this.bar.hidden = row.progress === null;
    this.fill.style.width = `${100 * (row.progress ?? 0)}%`;
    const hint = [texts.statusHint, ...this.rows.map((one) => lineOf(one, texts))].join("\n");
    if (this.button.title !== hint) this.button.title = hint;
    this.button.setAttribute("aria-label", texts.statusLabel(lineOf(row, texts) + several));
  }
}
