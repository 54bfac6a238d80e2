// The menu of one run, behind its "⋯": what can be done with it, and where something cannot, why.

import { el } from "../shared/dom";

export interface Action {
  what: string;
  text: string;
  title: string;
  /** Why it is not possible; "": it is. */
  why: string;
  work: () => void;
}

/** One menu for all rows of a table: it lies over the table, which would cut it off. */
export class RowMenu {
  readonly root = el("div", "wb-row-menu", "", { role: "menu" });
  private opener: HTMLElement | null = null;

  constructor() {
    this.root.hidden = true;
    this.root.addEventListener("keydown", (event) => this.pressed(event));
    this.root.addEventListener("focusout", (event) => {
      const { relatedTarget: to } = event;
      if (!(to instanceof Node) || !(this.root.contains(to) || to === this.opener)) this.close(false);
    });
  }

  isOpenFor(opener: HTMLElement): boolean {
    return this.opener === opener;
  }

  /** Open it below a button, within the card around it. */
  open(opener: HTMLElement, label: string, actions: Action[]): void {
    this.close(false);
    this.opener = opener;
    opener.setAttribute("aria-expanded", "true");
    this.root.setAttribute("aria-label", label);
    this.root.replaceChildren(...actions.map((action) => this.item(action)));
    this.root.hidden = false;
    const around = (this.root.offsetParent ?? this.root).getBoundingClientRect();
    const { bottom, right } = opener.getBoundingClientRect();
    this.root.style.top = `${bottom - around.top + 2}px`;
    this.root.style.right = `${Math.max(0, around.right - right)}px`;
    (this.root.firstElementChild as HTMLElement | null)?.focus();
  }

  close(returns: boolean): void {
    const { opener } = this;
    if (opener === null) return;
    this.opener = null;
    this.root.hidden = true;
    opener.setAttribute("aria-expanded", "false");
    if (returns) opener.focus();
  }

  private item({ what, text, title, why, work }: Action): HTMLElement {
    const item = el("button", "wb-row-action", text, { type: "button", role: "menuitem", tabindex: "-1", title: why || title, "data-what": what });
    if (why) {
      item.setAttribute("aria-disabled", "true");
      item.append(el("small", "", why));
    }
    item.addEventListener("click", () => {
      if (why) return;
      this.close(true);
      work();
    });
    return item;
  }

  /** The keys of a menu: arrows go round, Home and End to its ends, Escape closes it. */
  private pressed(event: KeyboardEvent): void {
    event.stopPropagation(); // single keys are commands of the notebook
    const items = [...this.root.children] as HTMLElement[];
    const at = items.findIndex((item) => item === event.target);
    const to = { ArrowDown: (at + 1) % items.length, ArrowUp: (at + items.length - 1) % items.length, Home: 0, End: items.length - 1 }[event.key];
    if (to !== undefined) items[to]?.focus();
    else if (event.key === "Escape") this.close(true);
    else return;
    event.preventDefault();
  }
}
