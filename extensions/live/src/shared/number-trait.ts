// A number that is set here by dragging, and that Python sets too: the learning rate, the clip value.

import type { AnyModel } from "../data/anywidget";

const SEND_EVERY_MS = 60;

export class NumberTrait {
  /** The value while the person drags, which Python's older values do not replace. */
  private held: number | null = null;
  private timer: ReturnType<typeof setTimeout> | null = null;

  constructor(
    private readonly model: AnyModel,
    private readonly trait: "marker" | "clip",
  ) {}

  get value(): number {
    return this.held ?? Number(this.model.get(this.trait));
  }

  /** Three digits: nobody means more by a drag. */
  drag(value: number): void {
    this.held = Number(value.toPrecision(3));
    this.timer ??= setTimeout(() => this.send(), SEND_EVERY_MS);
  }

  drop(): void {
    this.send();
    this.held = null;
  }

  private send(): void {
    if (this.timer !== null) clearTimeout(this.timer);
    this.timer = null;
    if (this.held === null || this.held === this.model.get(this.trait)) return;
    this.model.set(this.trait, this.held);
    this.model.save_changes();
  }
}
