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

/** One menu for all rows of a table. It is in the page's top layer: the table, or an output of a notebook, would cut it off. */
export class RowMenu {
  readonly root = el("div", "wb-row-menu", "", { role: "menu", popover: "manual" });
  private opener: HTMLElement | null = null;
  /** Its button has moved with what was scrolled. */
  private readonly scrolled = ({ target }: Event): void => {
    if (target instanceof Node && this.opener !== null && target.contains(this.opener)) this.close(false);
  };

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

  /** Open it below a button, or above it where there is no room. */
  open(opener: HTMLElement, label: string, actions: Action[]): void {
    this.close(false);
    this.opener = opener;
    opener.setAttribute("aria-expanded", "true");
    this.root.setAttribute("aria-label", label);
    this.root.replaceChildren(...actions.map((action) => this.item(action)));
    this.root.hidden = false;
    this.root.showPopover();
    const { top, bottom, right } = opener.getBoundingClientRect();
    const { offsetHeight: height, offsetWidth: width } = this.root;
    const isBelow = bottom + height < innerHeight || top < height;
    this.root.style.top = `${isBelow ? bottom + 2 : top - height - 2}px`;
    this.root.style.left = `${Math.max(0, right - width)}px`;
    (this.root.firstElementChild as HTMLElement | null)?.focus({ preventScroll: true });
    addEventListener("scroll", this.scrolled, { capture: true });
  }

  close(returns: boolean): void {
    const { opener } = this;
    if (opener === null) return;
    this.opener = null;
    removeEventListener("scroll", this.scrolled, { capture: true });
    this.root.hidden = true;
    this.root.hidePopover();
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
