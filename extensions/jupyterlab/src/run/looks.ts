// How the switches of the cards stand, in the state database of JupyterLab: the next pane and the next page begin with them.

import type { IStateDB } from "@jupyterlab/statedb";
import type { ReadonlyPartialJSONObject } from "@lumino/coreutils";
import type { Looks } from "./canvas-model";

const KEY = "tuning-workbench:looks";

/** The switches as they were left; a state database that cannot be read has none. */
export async function keptLooks(states: IStateDB | null): Promise<Looks> {
  let looks: Record<string, unknown> = {};
  try {
    const kept = await states?.fetch(KEY);
    if (typeof kept === "object" && kept !== null && !Array.isArray(kept)) looks = kept as Record<string, unknown>;
  } catch (error) {
    console.warn(KEY, error);
  }
  return {
    read: () => looks,
    write: (changed) => {
      looks = changed;
      void states?.save(KEY, changed as ReadonlyPartialJSONObject);
    },
  };
}
