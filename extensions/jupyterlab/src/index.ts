// The plugins of the extension, each in a file of its own.

import type { JupyterFrontEndPlugin } from "@jupyterlab/application";
import { launcher } from "./launcher/plugin";
import { notebook } from "./notebook/plugin";
import { panel } from "./panel/plugin";
import { runs } from "./runs/plugin";

const plugins: JupyterFrontEndPlugin<unknown>[] = [
  runs,
  panel,
  notebook,
  launcher,
];
export default plugins;
