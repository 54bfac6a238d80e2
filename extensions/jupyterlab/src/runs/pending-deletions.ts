// Deletes runs some seconds after a person has asked for it; until then that can be undone, as in the panel of a bench.

import { Signal } from "@lumino/signaling";
import { keyOf } from "../messages";
import type { Ref } from "../messages";

/** As SECONDS in workbench/ui/canvas/runs/pending_deletions.py. */
export const UNDO_MS = 10_000;

export interface Deletion {
  readonly refs: Ref[];
  timer: ReturnType<typeof setTimeout>;
}

/** If the page is closed before, the runs stay. */
export class PendingDeletions {
  readonly changed = new Signal<this, void>(this);
  private deletions: Deletion[] = [];

  /** remove: deletes runs for good, and says itself which it could not. */
  constructor(private readonly remove: (refs: Ref[]) => Promise<unknown>, private readonly wait = UNDO_MS) {}

  /** Those that can still be undone, the oldest first. */
  get pending(): readonly Deletion[] {
    return this.deletions;
  }

  has(ref: Ref): boolean {
    return this.deletions.some(({ refs }) => refs.some((other) => keyOf(other) === keyOf(ref)));
  }

  add(refs: Ref[]): void {
    const left = refs.filter((ref) => !this.has(ref));
    if (left.length === 0) return;
    const deletion: Deletion = { refs: left, timer: setTimeout(() => void this.carryOut(deletion), this.wait) };
    this.deletions = [...this.deletions, deletion];
    this.changed.emit();
  }

  /** Keep the runs of this deletion. */
  undo(deletion: Deletion): void {
    clearTimeout(deletion.timer);
    this.forget(deletion);
  }

  private async carryOut(deletion: Deletion): Promise<void> {
    await this.remove(deletion.refs);
    this.forget(deletion); // a run that could not be deleted is listed again
  }

  private forget(deletion: Deletion): void {
    this.deletions = this.deletions.filter((other) => other !== deletion);
    this.changed.emit();
  }
}
