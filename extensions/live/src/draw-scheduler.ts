// Draws the cards: at most once a frame, only those with news, and plots only while they are visible.

import type { Topic } from "./data/store";

export interface Drawer {
  topics: Topic[];
  draw: () => void;
  /** Costly, and only for the eye: it waits while the view is out of sight. Words are written all the same, to be announced. */
  plot?: boolean;
  /** Whether it is on the stage or in the open tab: what is not is drawn when it is again. */
  shown?: () => boolean;
}

/** Collects what has news and draws it with the next frame; a hidden page has no frames. `root`: the view. */
export class DrawScheduler {
  private readonly news = new Set<Topic>();
  private readonly late = new Set<Drawer>(); // those that have news and are out of sight
  private frame = 0;
  private seen = true;
  private readonly observer = new IntersectionObserver((entries) => {
    this.seen = entries.at(-1)?.isIntersecting ?? true;
    if (this.seen && this.late.size) this.ask();
  });

  constructor(
    root: HTMLElement,
    private readonly drawers: Drawer[],
  ) {
    this.observer.observe(root);
  }

  hear(topics: ReadonlySet<Topic>): void {
    topics.forEach((topic) => this.news.add(topic));
    if (this.news.size) this.ask();
  }

  /** Draw all. */
  everything(): void {
    this.drawers.forEach((drawer) => this.late.add(drawer));
    this.ask();
  }

  stop(): void {
    this.observer.disconnect();
    cancelAnimationFrame(this.frame);
  }

  private ask(): void {
    this.frame ||= requestAnimationFrame(() => this.draw());
  }

  private draw(): void {
    this.frame = 0;
    const now = this.drawers.filter((one) => this.late.has(one) || one.topics.some((topic) => this.news.has(topic)));
    this.news.clear();
    this.late.clear();
    for (const drawer of now) {
      if ((drawer.plot && !this.seen) || drawer.shown?.() === false) this.late.add(drawer);
      else drawn(drawer);
    }
  }
}

/** An error in one card is the page's to report, and no reason for the others to stand still. */
function drawn(drawer: Drawer): void {
  try {
    drawer.draw();
  } catch (error) {
    reportError(error);
  }
}
