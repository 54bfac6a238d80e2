// The Runs panel in the left side bar.

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from "@jupyterlab/application";
import { Widget } from "@lumino/widgets";

export const runs: JupyterFrontEndPlugin<void> = {
  id: "tuning-workbench:runs",
  description: "Training runs in the left side bar.",
  autoStart: true,
  activate: (app: JupyterFrontEnd) => {
    const panel = new Widget();
    panel.id = "tuning-workbench-runs";
    panel.title.caption = "Runs";
    app.shell.add(panel, "left");
  },
};
