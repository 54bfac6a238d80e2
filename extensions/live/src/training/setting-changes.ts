// Marks where a setting was changed during the run, with its new value.

import type { FitAxis } from "../plot/axis";
import type { Layer } from "../plot/layers";
import type { Store } from "../data/store";
import type { Palette } from "../shared/theme";

export function changes(store: Store, axis: FitAxis, { muted }: Palette): Layer {
  const marks = store.state.changes ?? [];
  return { name: "", kind: "rules", x: axis.places(marks.map(([step]) => step)), y: [], texts: marks.map(([, text]) => text), colour: muted };
}
