// Gathers the runs that end, so that many are one piece of news.

import type { Row } from "../messages";

/** Runs that end within this time of the first one are in its notification. */
const GATHER_MS = 2000;

export class Endings {
  private waiting: Row[] = [];
  /** What was told while the person was away. */
  private missed: Row[] = [];
  private timer: ReturnType<typeof setTimeout> | undefined;

  /** tell: gets the runs, the last one at the end; `more`: they have those of the last call, too, and take its place. */
  constructor(private readonly isAway: () => boolean, private readonly tell: (rows: Row[], more: boolean) => void) {}

  add(row: Row): void {
    this.waiting.push(row);
    this.timer ??= setTimeout(() => this.told(), GATHER_MS);
  }

  /** The person looks at the page: what was told until now is known. */
  seen(): void {
    this.missed = [];
  }

  private told(): void {
    this.timer = undefined;
    const more = this.missed.length > 0;
    const rows = [...this.missed, ...this.waiting];
    this.waiting = [];
    this.missed = this.isAway() ? rows : [];
    this.tell(rows, more);
  }
}
