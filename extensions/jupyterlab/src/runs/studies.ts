// The studies in the Runs panel, above the runs. They are asked for again and again while the panel is seen: workers of any process go on.

import { el, setText } from "../../../live/src/shared/dom";
import type { Api } from "../api";
import type { StudyPage, StudyRef, StudyRow } from "../messages";
import type { Texts } from "../texts";
import { whenOf } from "./words";

const SHAPES: Record<string, string> = { running: "▶", paused: "❚❚", ended: "✓", "no worker": "○", unreadable: "✕" };
/** Between two questions while a study runs, and while none does. */
const LIVE_MS = 2000, QUIET_MS = 10_000;
/** Shown at first: the newest ones. */
const FEW = 3;

export class StudyList {
  readonly root = el("details", "wb-side-studies");
  private readonly title = el("summary");
  private readonly list = el("ul", "");
  private readonly all = el("button", "wb-side-button", "", { type: "button" });
  private readonly rows = new Map<string, { told: string; item: HTMLElement }>();
  private page: StudyPage | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private seen = false;
  private everything = false;

  /** open: shows a study. */
  constructor(private readonly api: Api, private readonly open: (ref: StudyRef) => void, private readonly texts: Texts) {
    this.root.open = true;
    this.root.hidden = true;
    this.root.append(this.title, this.list, this.all);
    this.all.addEventListener("click", () => {
      this.everything = true;
      this.draw();
    });
  }

  /** Ask now, and again as long as the panel is seen. */
  start(): void {
    this.seen = true;
    clearTimeout(this.timer);
    void this.ask();
  }

  stop(): void {
    this.seen = false;
    clearTimeout(this.timer);
  }

  private async ask(): Promise<void> {
    try {
      this.page = await this.api.studies();
    } catch {
      // the panel says that the server does not answer; what was listed stays
    }
    if (!this.seen) return;
    this.draw();
    const live = this.page?.reading || this.page?.studies.some(({ status }) => status === "running");
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.ask(), live ? LIVE_MS : QUIET_MS);
  }

  private draw(): void {
    const { texts } = this;
    const { studies = [], more = 0 } = this.page ?? {};
    this.root.hidden = studies.length === 0;
    setText(this.title, texts.studies(studies.length + more));
    const shown = this.everything ? studies : studies.slice(0, FEW);
    const keys = new Set(shown.map(keyOf));
    for (const key of this.rows.keys()) if (!keys.has(key)) this.rows.delete(key);
    const items = shown.map((row) => this.item(row));
    // an item that stays is not touched: the keyboard may be on it
    items.forEach((item, i) => {
      if (this.list.children[i] !== item) this.list.insertBefore(item, this.list.children[i] ?? null);
    });
    while (this.list.children.length > items.length) this.list.lastElementChild?.remove();
    this.all.hidden = shown.length === studies.length;
    setText(this.all, texts.moreStudies(studies.length - shown.length));
  }

  private item(row: StudyRow): HTMLElement {
    const [key, told] = [keyOf(row), JSON.stringify(row)];
    const known = this.rows.get(key);
    if (known?.told === told) return known.item;
    const item = known?.item ?? el("li");
    this.rows.set(key, { told, item });
    let button = item.querySelector("button");
    if (button === null) {
      button = el("button", "wb-side-study", "", { type: "button", title: this.texts.openStudy });
      button.addEventListener("click", () => this.open({ root: row.root, study: row.study }));
      item.append(button);
    }
    button.dataset["status"] = row.status;
    button.replaceChildren(...this.lines(row));
    return item;
  }

  private lines(row: StudyRow): HTMLElement[] {
    const { texts } = this;
    const [head, state] = [el("span", "wb-side-head"), el("span", "wb-side-state")];
    head.append(el("span", "wb-side-name", row.study), el("span", "wb-side-when", whenOf(row)));
    const spent = row.budget ? texts.studySpent(row.spent, row.budget) : "";
    state.append(el("span", "wb-side-shape", SHAPES[row.status] ?? "○", { "aria-hidden": "true" }), el("span", "wb-side-status", texts.studyStatus[row.status] ?? row.status), el("span", "wb-side-muted", spent));
    if (row.error) return [head, state, el("span", "wb-side-error", row.error, { title: row.error })];
    const bar = el("span", "wb-side-bar", "", { "aria-hidden": "true" }); // the line above says it
    const fill = el("i");
    fill.style.width = `${100 * row.progress}%`;
    bar.append(fill);
    const best = row.best ? texts.best(row.monitor, row.best) : "";
    const facts = el("span", "wb-side-muted", [best, texts.trials(row.trials)].filter(Boolean).join(" · "));
    return row.status === "running" || row.status === "paused" ? [head, state, bar, facts] : [head, state, facts];
  }
}

function keyOf({ root, study }: StudyRef): string {
  return `${root}/${study}`;
}
