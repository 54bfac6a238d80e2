// The drawer: a row of tabs below the stage, of which one or none is open. What is in a closed tab is neither sent nor drawn.

import { el } from "../shared/dom";
import type { Store } from "../data/store";
import { texts } from "../texts";

const { drawer: words } = texts;
export type TabName = keyof typeof words.tabs;

export class Drawer {
  readonly root = el("section", "wb-drawer", "", { "aria-label": words.label });
  private readonly bar = el("div", "wb-drawer-tabs");
  private readonly tabs = new Map<TabName, { button: HTMLButtonElement; panel: HTMLElement }>();
  private compared: string | undefined;

  /** contents: what each tab shows; that of the settings is below the canvas. */
  constructor(private readonly store: Store, contents: Record<TabName, HTMLElement[]>) {
    this.root.append(this.bar);
    for (const [name, parts] of Object.entries(contents) as [TabName, HTMLElement[]][]) {
      const button = el("button", "wb-drawer-tab", words.tabs[name], { type: "button", "data-tab": name });
      const panel = el("div", "wb-drawer-panel");
      panel.append(...parts);
      button.addEventListener("click", () => store.openTab(this.shows(name) ? "" : name));
      this.tabs.set(name, { button, panel });
      this.bar.append(button);
      this.root.append(panel);
    }
    this.draw();
  }

  shows(name: TabName): boolean {
    return this.store.tab === name;
  }

  /** Samples are there where somebody watches. A single job of another process has no settings and no list of runs; several that are compared have their comparison. */
  draw(): void {
    const { followed = false, still = false, compared, samples } = this.store.state;
    const bare = still && this.store.fit.rows.count === 0; // a file of a search, or of a comparison
    for (const [name, { button, panel }] of this.tabs) {
      const missing = { samples: !samples, gradients: bare, pace: bare, settings: followed, runs: followed && !compared };
      button.hidden = missing[name];
      panel.hidden = button.hidden || !this.shows(name);
      button.setAttribute("aria-expanded", String(!panel.hidden));
    }
  }

  /** A comparison is above the table of runs, whose tab opens when it begins. */
  compare(): void {
    const { compared, followed } = this.store.state;
    const now = compared ? JSON.stringify(compared.runs) : "";
    const begins = now !== "" && now !== this.compared && (this.compared !== undefined || followed);
    this.compared = now;
    if (begins && !this.shows("runs")) this.store.openTab("runs");
    this.draw();
  }
}
