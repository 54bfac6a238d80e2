// The answers of the searches on the stage, in large type, each with the button that applies it.

import { el, focusIn } from "../shared/dom";
import type { Store } from "../data/store";
import type { Answer } from "../data/messages";
import { texts } from "../texts";

const { stage: words } = texts;

export class Answers {
  readonly root = el("div", "wb-answers", "", { role: "status" });
  private told = "";

  constructor(private readonly store: Store) {}

  draw(): void {
    const { answers = [], stage = "", followed = false } = this.store.state;
    const shown = answers.filter((answer) => stage === "tune" || answer.kind === stage);
    const now = JSON.stringify([shown, followed]);
    if (now === this.told) return;
    this.told = now;
    const held = focusIn(this.root)?.dataset["kind"];
    this.root.replaceChildren(...shown.map((answer) => this.line(answer, followed)));
    this.root.hidden = shown.length === 0;
    if (held) this.root.querySelector<HTMLElement>(`[data-kind="${CSS.escape(held)}"]`)?.focus();
  }

  private line(answer: Answer, followed: boolean): HTMLElement {
    const line = el("div", "wb-answer");
    line.append(el("span", "wb-answer-of", answer.of), el("b", "wb-answer-value", answer.text || words.none));
    // A button that is in use keeps its place and the keyboard's focus.
    if (answer.sets && !followed) {
      const use = el("button", "wb-use", answer.used ? words.inUse : words.use, {
        type: "button", "data-kind": answer.kind, title: answer.sets, "aria-label": answer.used ? words.isInUse(answer.text) : texts.use(answer.text),
      });
      if (answer.used) use.setAttribute("aria-disabled", "true");
      else use.addEventListener("click", () => this.store.request("use", { kind: answer.kind }));
      line.append(use);
    }
    if (answer.why) line.append(el("span", "wb-answer-why", answer.why));
    return line;
  }
}
