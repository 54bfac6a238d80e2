// The notices above the stage, the newest first. A screen reader hears each once, when it comes.

import { el, focusIn } from "../shared/dom";
import type { Store } from "../data/store";
import type { NoticeLine } from "../data/messages";
import { texts } from "../texts";

const CLASSES = { info: "wb-info", warning: "wb-warning", error: "wb-error-notice" };

export class Notices {
  readonly root = el("div", "wb-notice");
  private readonly list = el("div", "wb-notice-lines");
  private readonly lines = new Map<number, HTMLElement>();
  private readonly close = el("button", "wb-button wb-notice-close", "✕", { type: "button", title: texts.controls.closeNotices, "aria-label": texts.controls.closeNotices });

  constructor(private readonly store: Store) {
    this.close.addEventListener("click", () => store.request("close_notices"));
    this.root.append(this.list, this.close);
    this.draw();
  }

  draw(): void {
    const { notices = [] } = this.store.state;
    const held = focusIn(this.root) !== null;
    const known = new Set(notices.map(({ number }) => number));
    for (const [number, line] of this.lines) {
      if (known.has(number)) continue;
      line.remove();
      this.lines.delete(number);
    }
    this.root.hidden = notices.length === 0;
    notices.forEach((notice, at) => {
      if (this.lines.has(notice.number)) return;
      const line = this.line(notice);
      this.lines.set(notice.number, line);
      this.list.insertBefore(line, this.list.children[at] ?? null);
    });
    if (held && !this.root.hidden && focusIn(this.root) === null) this.close.focus();
  }

  private line({ number, level, text, offers }: NoticeLine): HTMLElement {
    const line = el("div", CLASSES[level], "", { role: level === "error" ? "alert" : "status" });
    line.append(el("span", "", text));
    for (const offer of offers) {
      const button = el("button", "wb-button", offer, { type: "button" });
      button.addEventListener("click", () => this.store.request("answer_notice", { number, offer }));
      line.append(button);
    }
    return line;
  }
}
