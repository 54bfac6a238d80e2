// Lists the queued jobs: each can be removed, and all stopped.

import { el, focusIn } from "../shared/dom";
import type { Store } from "../data/store";
import { texts } from "../texts";

const { queue: words } = texts;

export class Queue {
  readonly root = el("div", "wb-queue", "", { role: "group", "aria-label": words.label });
  private readonly list = el("ol");
  private readonly all = el("button", "wb-tool wb-danger", words.stopAll, { type: "button", title: words.stopAllTooltip });

  constructor(private readonly store: Store) {
    this.root.append(el("b", "", words.title), this.list, this.all);
    this.all.addEventListener("click", () => store.request("stop_all"));
    this.root.hidden = true;
  }

  draw(): void {
    const waiting = this.store.state.queue ?? [];
    const held = [...this.list.children].findIndex((item) => focusIn(item));
    this.root.hidden = waiting.length === 0;
    this.list.replaceChildren(...waiting.map(({ job, words: kind, why }) => this.item(job, kind, why)));
    if (held < 0) return;
    const near = this.list.children[Math.min(held, waiting.length - 1)];
    (near?.querySelector("button") ?? this.root.closest<HTMLElement>(".wb-live")?.querySelector<HTMLElement>(".wb-drawer-tab"))?.focus();
  }

  private item(job: string, kind: string, why: string): HTMLElement {
    const item = el("li", "", `${kind} `);
    const remove = el("button", "wb-tool", words.remove, { type: "button", title: words.removeTooltip(job), "aria-label": words.removeLabel(job) });
    remove.addEventListener("click", () => this.store.request("stop", { job }));
    item.append(el("span", "wb-muted", why ? `${job} · ${why}` : job), " ", remove);
    return item;
  }
}
