// Tells all plots of a run which update is under the mouse in one of them, so that they mark it.

type Listener = (step: number | null) => void;

export class Hover {
  private readonly listeners = new Map<object, Listener>();

  /** `who`: does not hear of its own moves. */
  listen(who: object, listener: Listener): () => void {
    this.listeners.set(who, listener);
    return () => this.listeners.delete(who);
  }

  /** The update under the mouse or the keys of `who`; null: none any more. */
  move(who: object, step: number | null): void {
    for (const [other, listener] of this.listeners) if (other !== who) listener(step);
  }
}
