// Chooses the parameter group whose learning rates the finder shows. The curve has the rates of the first group.

import { el } from "../shared/dom";
import { rate } from "../shared/format";
import type { Store } from "../data/store";
import type { Group } from "../data/messages";
import { texts } from "../texts";

export class ParamGroups {
  readonly root = el("label", "wb-groups", texts.lrFinder.groups);
  private readonly choice = el("select", "wb-select");
  private groups: Group[] = [];
  private drawn = "";
  /** Which one the person wants to see, also while there are fewer. */
  private wanted: number;

  constructor(store: Store, changed: () => void) {
    this.wanted = store.viewOption("finder.group", 0);
    this.root.append(this.choice);
    this.root.hidden = true;
    this.choice.addEventListener("change", () => {
      this.wanted = this.choice.selectedIndex;
      store.setViewOption("finder.group", this.wanted);
      changed();
    });
    this.choice.addEventListener("keydown", (event) => event.stopPropagation()); // the notebook has commands on single keys
  }

  /** The curve's rate at a setting of 1. */
  get base(): number {
    return this.groups[0]?.ratio || 1;
  }

  /** From a rate of the curve to the chosen group's own. */
  readonly scale = (lr: number): number => lr * ((this.groups[this.choice.selectedIndex]?.ratio ?? this.base) / this.base);

  /** There is a choice where groups have different rates. */
  draw(groups: Group[]): void {
    const now = JSON.stringify(groups);
    if (now === this.drawn) return;
    this.drawn = now;
    this.groups = groups;
    this.choice.replaceChildren(...groups.map((group, i) => el("option", "", words(group, i, this.base))));
    this.choice.selectedIndex = Math.min(this.wanted, groups.length - 1);
    this.root.hidden = !groups.some((group) => Math.abs(group.ratio / this.base - 1) > 1e-9);
    if (this.root.hidden) this.choice.selectedIndex = 0;
  }
}

function words(group: Group, i: number, base: number): string {
  const name = group.name || texts.lrFinder.group(i);
  return i === 0 ? name : texts.lrFinder.groupRatio(name, rate(group.ratio / base));
}
