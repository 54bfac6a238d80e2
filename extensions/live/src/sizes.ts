// Every batch size as it is tried: whether it fits, samples per second and peak memory as bars, and a button that takes it.

import { Card } from "./card";
import { el, say } from "./dom";
import type { Store } from "./store";
import { failure, measured, name, type Scales, trying } from "./trial";
import type { Trial } from "./wire";

/** The limit is drawn where bars are not too short to be told apart beside it. */
const IN_SIGHT = 4;

export class Sizes {
  readonly card = new Card("Batch size", "Press Find beside the batch size: speed and peak memory of each size tried appear here.", "sizes");
  private readonly table = el("div", "wb-trials", "", { role: "table", "aria-label": "Batch sizes tried" });
  private readonly room = el("div", "wb-caption");
  private readonly lines = new Map<string, { of: string; line: HTMLElement }>();

  constructor(private readonly store: Store) {
    this.card.setKey([
      { name: "samples/s", swatch: "bar-rate" },
      { name: "peak memory", swatch: "bar-peak" },
      { name: "limit", swatch: "limit" },
    ]);
    this.card.body.append(this.table);
    this.card.root.append(this.room);
  }

  draw(): void {
    const { trials = [], search, trying: now } = this.store.state;
    this.card.empty = trials.length === 0 && !now;
    const scales = this.scales(trials);
    const best = trials.find((trial) => trial.size === search?.best);
    const lines = trials.map((trial) => this.line(trial, scales));
    if (now) lines.push(this.kept("trying", now, () => trying(now)));
    const gone = [...this.lines.keys()].filter((key) => key !== (now ? "trying" : "") && !trials.some((t) => key === name(t)));
    gone.forEach((key) => this.lines.delete(key));
    this.arrange(lines);
    this.card.setCaption(search?.ended ?? "");
    say(this.room, this.left(trials.find((trial) => this.inUse(trial) && trial.state === "fits") ?? best));
  }

  /** Lines that stay are left where they are, so that the focus and what is unfolded stay too. */
  private arrange(lines: HTMLElement[]): void {
    const within = this.table.contains(document.activeElement) ? (document.activeElement as HTMLElement) : null;
    lines.forEach((line, i) => {
      if (this.table.children[i] !== line) this.table.insertBefore(line, this.table.children[i] ?? null);
    });
    while (this.table.children.length > lines.length) this.table.lastElementChild?.remove();
    if (!within || this.table.contains(within)) return;
    const key = within.dataset["key"];
    this.table.querySelector<HTMLElement>(`[data-key="${CSS.escape(key ?? "")}"]`)?.focus();
  }

  private line(trial: Trial, scales: Scales): HTMLElement {
    const { search } = this.store.state;
    const all = search?.fastest === search?.best ? (["best", "largest"] as const) : (["best", "fastest", "largest"] as const);
    const roles = all.filter((role) => search?.[role] === trial.size);
    const used = this.inUse(trial);
    const use = this.store.state.followed ? null : () => this.use(trial); // of another process there is nothing here to set
    return this.kept(name(trial), [trial, scales, roles, used, use !== null], (before) =>
      trial.state === "fits" ? measured(trial, scales, roles, used, use) : failure(trial, scales, before),
    );
  }

  /** The line made before, if nothing about it has changed. */
  private kept(key: string, about: unknown, make: (before: HTMLElement | null) => HTMLElement): HTMLElement {
    const of = JSON.stringify(about);
    const known = this.lines.get(key);
    if (known?.of === of) return known.line;
    const line = make(known?.line ?? null);
    this.lines.set(key, { of, line });
    return line;
  }

  private scales(trials: Trial[]): Scales {
    const rate = Math.max(...trials.map((trial) => trial.rate ?? 0), 0);
    const peak = Math.max(...trials.map((trial) => trial.peak ?? 0), 0);
    const limit = this.store.state.room?.bytes ?? 0;
    const seen = limit > 0 && limit < IN_SIGHT * peak;
    return { rate, peak: seen ? Math.max(limit * 1.04, peak) : peak, limit: seen ? limit : null };
  }

  private inUse(trial: Trial): boolean {
    const { chosen } = this.store.state;
    return chosen?.size === trial.size && (trial.batches === null || chosen.batches === trial.batches);
  }

  private use(trial: Trial): void {
    const batches = trial.batches === null ? {} : { batches: trial.batches };
    this.store.request("use_batch_size", { value: trial.size, ...batches });
  }

  /** What is kept free. */
  private left(trial: Trial | undefined): string {
    const { room } = this.store.state;
    if (!room) return "";
    const limit = `A trial could take ${room.words}.`;
    if (!trial?.peak || trial.peak > room.bytes) return limit;
    return `${limit} ${name(trial)} leaves ${share(1 - trial.peak / room.bytes)} of it free.`;
  }
}

function share(fraction: number): string {
  return fraction > 0.995 ? "nearly all" : `${Math.round(100 * fraction)}%`;
}
