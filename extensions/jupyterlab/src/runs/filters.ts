// The filters of the Runs panel: search, status, tag, folder, and the order.

import { el } from "../../../live/src/shared/dom";
import type { SortBy } from "../messages";
import type { Texts } from "../texts";
import { NEWEST } from "./list";
import type { Filter, RunList } from "./list";
import { statusOf } from "./words";

/** After the last key, until the search is asked for. */
const TYPING_MS = 250;

export class Filters {
  readonly root: HTMLElement;
  private readonly search: HTMLInputElement;
  private readonly status = new Choice();
  private readonly tag = new Choice();
  private readonly folder = new Choice();
  private readonly sort = new Choice();
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly list: RunList, private readonly texts: Texts) {
    this.root = el("div", "wb-side-filters", "", { role: "search" });
    const names = { type: "search", "aria-label": texts.search, placeholder: texts.search, title: texts.searchHint };
    this.search = el("input", "", "", names);
    this.search.addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.ask({ search: this.search.value.trim() }), TYPING_MS);
    });
    const labels = [texts.statusFilter, texts.tagFilter, texts.rootFilter, texts.sort];
    [this.status, this.tag, this.folder, this.sort].forEach((choice, i) => {
      choice.root.setAttribute("aria-label", labels[i]!);
      choice.root.title = labels[i]!;
    });
    this.status.root.onchange = () => this.ask({ status: this.status.value });
    this.tag.root.onchange = () => this.ask({ tag: this.tag.value });
    this.folder.root.onchange = () => this.ask({ root: this.folder.value });
    this.sort.root.onchange = () => {
      const [sort, order] = this.sort.value.split(" ") as [SortBy, Filter["order"]];
      this.ask({ sort, order });
    };
    this.root.append(this.search, this.status.root, this.tag.root, this.folder.root, this.sort.root);
  }

  /** Show all runs again, in the same order. */
  clear(): void {
    this.search.value = "";
    const { sort: _, order: __, ...filter } = NEWEST;
    this.ask(filter);
    this.search.focus();
  }

  draw(): void {
    const { asks, page } = this.list;
    const { texts } = this;
    const statuses = Object.entries(page?.statuses ?? {}).map(([status, count]): [string, string] => [status, texts.ofStatus(statusOf({ status }, texts), count)]);
    this.status.show([["", texts.anyStatus], ...statuses], asks.status);
    this.tag.show([["", texts.anyTag], ...(page?.tags ?? []).map((tag): [string, string] => [tag, tag])], asks.tag);
    this.tag.root.hidden = !page?.tags.length && !asks.tag;
    this.folder.show([["", texts.anyRoot], ...(page?.roots ?? []).map(({ key, name }): [string, string] => [key, name])], asks.root);
    this.folder.root.hidden = (page?.roots.length ?? 0) < 2 && !asks.root;
    this.sort.show(Object.entries(texts.sorts), `${asks.sort} ${asks.order}`);
  }

  private ask(filter: Partial<Filter>): void {
    void this.list.ask(filter);
  }
}

/** A select whose options come with each page; it is changed only where they differ. */
class Choice {
  readonly root = el("select");
  private shown = "";

  get value(): string {
    return this.root.value;
  }

  show(options: [value: string, text: string][], chosen: string): void {
    const all = options.some(([value]) => value === chosen) ? options : [...options, [chosen, chosen] as [string, string]];
    const shown = JSON.stringify(all);
    if (shown !== this.shown) this.root.replaceChildren(...all.map(([value, text]) => el("option", "", text, { value })));
    this.shown = shown;
    this.root.value = chosen;
  }
}
