// Shows the error that ended a job: its type and message, the user's own line, and the traceback to unfold and copy.

import { copyText } from "./code-line";
import { el, setText } from "../shared/dom";
import type { Store } from "../data/store";
import { texts } from "../texts";

const { failure: words } = texts;

export class Failure {
  readonly root = el("section", "wb-failure", "", { "aria-label": words.label });
  private readonly title = el("b");
  private readonly message = el("span", "wb-failure-message");
  private readonly where = el("code", "wb-failure-where");
  private readonly advice = el("p", "wb-failure-advice");
  private readonly remedies = el("div", "wb-failure-remedies");
  private readonly details = el("details");
  private readonly text = el("pre", "", "", { tabindex: "0", "aria-label": words.traceback });
  private told: unknown = undefined; // nothing was drawn yet

  constructor(private readonly store: Store) {
    const copy = el("button", "wb-tool", texts.copy, { type: "button", title: words.copyTraceback });
    copy.addEventListener("click", () => void copyText(this.text, copy));
    this.details.append(el("summary", "", words.traceback), copy, this.text);
    const alert = el("div", "", "", { role: "alert" });
    alert.append(this.title, " ", this.message, this.advice);
    this.root.append(alert, this.remedies, this.where, this.details);
    this.draw();
  }

  draw(): void {
    const failure = this.store.state.failure ?? null;
    if (failure === this.told) return;
    this.told = failure;
    this.root.hidden = failure === null;
    setText(this.title, failure?.type ? words.title(failure.title, failure.type) : failure?.title ?? "");
    setText(this.message, failure?.message ?? "");
    setText(this.advice, failure?.advice ?? "");
    this.advice.hidden = !failure?.advice;
    this.remedies.replaceChildren(...(failure?.remedies ?? []).map((code) => this.remedy(code)));
    this.remedies.hidden = this.remedies.childElementCount === 0 || this.store.state.followed === true || this.store.state.still === true;
    setText(this.where, failure?.where ?? "");
    this.where.hidden = !failure?.where;
    setText(this.text, failure?.traceback ?? "");
    this.details.hidden = !failure?.traceback;
    this.details.open = false;
  }

  /** A button that carries out a line of code, which it shows. */
  private remedy(code: string): HTMLElement {
    const button = el("button", "wb-tool wb-fix", "", { type: "button", title: code });
    button.append(el("span", "", code.startsWith("bench.set(") ? words.halve : words.search), el("code", "", code));
    button.addEventListener("click", () => this.store.request("remedy", { code, stop: false }));
    return button;
  }
}
