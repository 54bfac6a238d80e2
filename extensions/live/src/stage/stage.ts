// The stage: one large place for what is asked now. A search shows its curve, a fit its loss; a search's answer stands above, large.

import { el } from "../shared/dom";
import type { Store } from "../data/store";
import { texts } from "../texts";
import { Answers } from "./answers";

export class Stage {
  readonly root = el("section", "wb-stage", "", { "aria-label": texts.stage.label });
  private readonly answers: Answers;

  /** views: for each kind of job, and for a study, what draws it; a job of another kind has its answers only. */
  constructor(private readonly store: Store, private readonly views: Record<string, { root: HTMLElement }>) {
    this.answers = new Answers(store);
    this.root.append(this.answers.root, ...Object.values(views).map((view) => view.root));
    this.draw();
  }

  /** Show the card of the present kind of job. */
  draw(): void {
    const { stage: kind = "" } = this.store.state;
    this.root.hidden = !kind;
    this.root.dataset["kind"] = kind;
    for (const [name, view] of Object.entries(this.views)) view.root.hidden = name !== kind;
    this.answers.draw();
  }

  /** Whether the card of this kind of job is on the stage. */
  shows(kind: string): boolean {
    return this.store.state.stage === kind;
  }
}
