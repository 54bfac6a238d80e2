// The plugins of the extension, each in a file of its own.

import type { JupyterFrontEndPlugin } from "@jupyterlab/application";
import { runs } from "./runs/plugin";

const plugins: JupyterFrontEndPlugin<unknown>[] = [
  runs,
];
export default plugins;
