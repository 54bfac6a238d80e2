// What the pane of a run says, in the language of JupyterLab.

import type { TranslationBundle } from "@jupyterlab/translation";
import { bytes } from "../../../live/src/shared/format";

export type PaneTexts = ReturnType<typeof paneTextsOf>;

export function paneTextsOf(trans: TranslationBundle) {
  return {
    title: (run: string) => trans.__("Run %1", run),
    study: (study: string) => trans.__("Study %1", study),
    noStudy: trans.__("There is no such study. It may have been deleted."),
    comparison: (n: number) => trans.__("Comparison of %1 runs", n),
    bar: trans.__("Status and actions"),
    more: trans.__("More…"),
    moreHint: trans.__("More actions for this run"),
    loading: trans.__("Loading…"),
    lost: trans.__("The connection to the Jupyter server is lost. What is shown may be old. The pane continues by itself when the server answers again."),
    missing: (run: string, why: string) => trans.__("%1 cannot be shown: %2", run, why),
    nothingToCompare: trans.__("Fewer than two runs are left to compare."),
    close: trans.__("Close this pane"),
    noCanvas: (why: string) => trans.__("The plots could not be loaded: %1", why),
    retry: trans.__("Try again"),
    noCommands: (why: string) => trans.__("This run takes no commands: %1", why),
    plots: trans.__("Plots"),

    facts: trans.__("Facts"),
    notes: trans.__("Notes"),
    settings: trans.__("Settings"),
    changed: trans.__("Settings that differ from the defaults"),
    defaults: (n: number) => trans._n("%1 setting at its default", "%1 settings at their defaults", n, n),
    allDefault: trans.__("Every setting has its default."),
    changes: trans.__("Changes while it ran"),
    atUpdate: (step: number) => trans.__("update %1", step),
    checkpoints: trans.__("Checkpoints"),
    noCheckpoints: trans.__("This run has no checkpoint."),
    columns: { name: trans.__("Name"), step: trans.__("Update"), what: trans.__("What it is"), size: trans.__("Size"), value: trans.__("Value") },
    size: (n: number) => bytes(n),
    output: trans.__("Output"),
    outputText: trans.__("What the processes of the run have printed"),
    outputCut: trans.__("The beginning is left out."),
    outputFailed: (why: string) => trans.__("The output could not be read: %1", why),
    outputNone: trans.__("Nothing was printed yet."),
  };
}
