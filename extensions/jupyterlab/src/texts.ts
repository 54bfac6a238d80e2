// What the Runs panel, the status bar, the notifications and the commands say, in the language of JupyterLab.

import type { TranslationBundle } from "@jupyterlab/translation";

export const DOMAIN = "tuning_workbench";
/** Of the commands in the palette; a name of our own, the same in all languages. */
export const CATEGORY = "Tuning Workbench";

export type Texts = ReturnType<typeof textsOf>;

export function textsOf(trans: TranslationBundle) {
  return {
    panelCaption: trans.__("Training runs"),
    list: trans.__("Training runs. Enter opens a run, Space selects several, Delete deletes"),

    listHint: trans.__("Click a run to open it. Click with Shift or Ctrl (Cmd on a Mac) to select several."),

    status: {
      queued: trans.__("queued"), running: trans.__("running"), paused: trans.__("paused"), finished: trans.__("finished"),
      stopped: trans.__("stopped"), failed: trans.__("failed"),
    } as Record<string, string>,

    search: trans.__("Search runs"),
    searchHint: trans.__("Words in names, notes, tags and settings, or comparisons: lr < 1e-3 and val_loss < 0.1"),
    statusFilter: trans.__("Status"),
    anyStatus: trans.__("Any status"),
    ofStatus: (status: string, count: number) => trans.__("%1 (%2)", status, count),
    tagFilter: trans.__("Tag"),
    anyTag: trans.__("Any tag"),
    rootFilter: trans.__("Folder"),
    anyRoot: trans.__("All folders"),
    sort: trans.__("Order"),
    sorts: {
      "created desc": trans.__("Newest first"), "created asc": trans.__("Oldest first"), "loss asc": trans.__("Lowest loss first"),
      "value desc": trans.__("Highest validation value first"), "value asc": trans.__("Lowest validation value first"),
      "time desc": trans.__("Longest first"), "name asc": trans.__("By name"), "status asc": trans.__("By status"),
    } as Record<string, string>,

    count: (n: number) => trans._n("%1 run", "%1 runs", n, n),
    countOf: (n: number, of: number) => trans.__("%1 of %2 runs", n, of),
    selected: (n: number) => trans.__("%1 selected", n),
    tooMany: (n: number, most: number) => trans.__("%1 selected, at most %2 can be compared", n, most),
    reading: trans.__("reading older runs"),
    loading: trans.__("Loading…"),
    more: (n: number) => trans._n("Show %1 more", "Show %1 more", n, n),
    none: trans.__("No runs yet. A run is listed here as soon as a bench trains in a folder of this server."),
    noMatch: trans.__("No run matches."),
    clear: trans.__("Show all runs"),
    failed: (why: string) => trans.__("The runs could not be loaded: %1", why),
    retry: trans.__("Try again"),
    lost: trans.__("The connection to the server is lost. JupyterLab tries to connect again. The list may be out of date."),
    absent: trans.__("This Jupyter server does not run Tuning Workbench's server extension. Install tuning-workbench[lab] where the server runs, and start the server again. This page then finds it by itself."),
    unreachable: trans.__("The Jupyter server does not answer."),

    percent: (share: number) => trans.__("%1%", Math.floor(100 * share)),
    left: (time: string) => trans.__("%1 left", time),
    updates: (n: number) => trans._n("%1 update", "%1 updates", n, n),
    loss: (value: string) => trans.__("loss %1", value),
    best: (metric: string, value: string) => trans.__("best %1 %2", metric, value),
    setting: (name: string, value: string) => trans.__("%1 %2", name, value),
    from: (run: string) => trans.__("continues %1", run),
    pinned: trans.__("pinned"),
    tagsOf: (tags: string[]) => trans.__("tags: %1", tags.join(", ")),

    studies: (n: number) => trans._n("%1 study", "%1 studies", n, n),
    moreStudies: (n: number) => trans._n("Show %1 more study", "Show %1 more studies", n, n),
    openStudy: trans.__("Open the view of this study"),
    studyStatus: {
      running: trans.__("running"), paused: trans.__("paused"), ended: trans.__("ended"), "no worker": trans.__("no worker"),
      unreadable: trans.__("cannot be read"),
    } as Record<string, string>,
    studySpent: (spent: string, budget: string) => trans.__("%1 of %2", spent, budget),
    trials: (n: number) => trans._n("%1 trial", "%1 trials", n, n),

    actions: trans.__("What to do with the selected runs"),
    moreActions: trans.__("More"),

    commands: {
      show: trans.__("Show the Runs panel"),
      open: trans.__("Open"),
      openStudy: trans.__("Open a study"),
      compare: trans.__("Compare"),
      stop: trans.__("Stop…"),
      pause: trans.__("Pause"),
      resume: trans.__("Resume"),
      validate: trans.__("Validate now"),
      checkpoint: trans.__("Write a checkpoint now"),
      annotate: trans.__("Edit name, tags and notes…"),
      pin: trans.__("Pin"),
      unpin: trans.__("Unpin"),
      copyId: trans.__("Copy the run's id"),
      delete: trans.__("Delete"),
      continue: trans.__("Continue in the notebook"),
      rerun: trans.__("Rerun in the notebook"),
      settings: trans.__("Insert its settings as a cell"),
      export: trans.__("Export as a script…"),
      permit: trans.__("Allow browser notifications"),
    },
    choose: (least: number, most: number, n: number) => (
      n > most ? trans._n("This is for %1 run at most. %2 are selected.", "This is for %1 runs at most. %2 are selected.", most, most, n)
      : trans._n("Select a run first.", "Select at least %1 runs first.", least, least)
    ),
    refused: trans.__("This could not be done"),

    stopTitle: (run: string) => trans.__("Stop %1?", run),
    stopBody: trans.__("It ends at its next update and keeps its results so far."),
    stop: trans.__("Stop"),
    cancel: trans.__("Cancel"),
    save: trans.__("Save"),
    deleted: (runs: string[]) => runs.length === 1 ? trans.__("%1 deleted.", runs[0]) : trans._n("%1 run deleted.", "%1 runs deleted.", runs.length, runs.length),
    undo: trans.__("Undo"),
    undoLabel: (runs: string[]) => trans.__("Undo the deletion of %1", runs.join(", ")),
    undoHint: trans.__("Possible for ten seconds: nothing is removed before"),
    delete: trans.__("Delete"),
    forceTitle: (run: string) => trans.__("Delete %1 anyway?", run),
    editTitle: (run: string) => trans.__("Name, tags and notes of %1", run),
    changedMeanwhile: (now: string) => trans.__("Somebody else has changed this meanwhile. It is now: %1. Saving replaces it by your text.", now),
    name: trans.__("Name"),
    tags: trans.__("Tags, separated by commas"),
    notes: trans.__("Notes"),

    statusLabel: (what: string) => trans.__("Training: %1", what),
    statusMany: (n: number) => trans._n("%1 run", "%1 runs", n, n),
    statusHint: trans.__("Open the run"),
    ended: (run: string, status: string) => trans.__("%1 %2", run, status),
    endedMany: (n: number, failed: number) => (failed ? trans.__("%1 runs ended, %2 of them failed", n, failed) : trans.__("%1 runs ended", n)),
    andMore: (names: string[], n: number) => trans._n("%2 and %1 more", "%2 and %1 more", n, n, names.join(", ")),
  };
}
