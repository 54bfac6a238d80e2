// Which runs a command is for: those that its arguments name, or those of the place that was in use last.

import { Token, type ReadonlyPartialJSONObject } from "@lumino/coreutils";
import type { Widget } from "@lumino/widgets";
import type { Ref } from "../messages";

interface Place {
  widget: Widget;
  refs: () => readonly Ref[];
  /** The number of its last use; 0: it was not used yet. */
  used: number;
}

/** The places where a person chooses runs: the Runs panel, and the panes of runs. */
export class RunsInUse {
  private places: Place[] = [];
  private uses = 0;

  /** A place, and the runs that are chosen there now. */
  add(widget: Widget, refs: () => readonly Ref[]): void {
    const place: Place = { widget, refs, used: 0 };
    this.places.push(place);
    const use = () => void (place.used = ++this.uses);
    widget.node.addEventListener("focusin", use);
    widget.node.addEventListener("pointerdown", use);
    widget.disposed.connect(() => void (this.places = this.places.filter((one) => one !== place)));
  }

  /** The runs of a command's arguments, {root, run} or {runs: [{root, run}, …]}; without them, those that `chosen` gives. */
  of(args: ReadonlyPartialJSONObject): Ref[] {
    if (Array.isArray(args["runs"])) return args["runs"].flatMap((one) => refIn(one as ReadonlyPartialJSONObject));
    return "run" in args ? refIn(args) : this.chosen();
  }

  /**
   * The runs of the place that was used last, of those that can be seen; none are chosen there: none. A place that was not used yet
   * counts where it is the only one that has runs.
   */
  private chosen(): Ref[] {
    const seen = this.places.filter(({ widget, refs, used }) => widget.isVisible && (used > 0 || refs().length > 0)).sort((a, b) => b.used - a.used);
    const [last, next] = seen;
    if (last === undefined || last.used === next?.used) return [];
    return last.refs().map(({ root, run }) => ({ root, run }));
  }
}

function refIn({ root, run }: ReadonlyPartialJSONObject): Ref[] {
  return typeof root === "string" && typeof run === "string" ? [{ root, run }] : [];
}

export const IRunsInUse = new Token<RunsInUse>("tuning-workbench:IRunsInUse", "Which runs a command without arguments is for.");
