// Detects that the kernel of a panel has ended or was restarted.

import type { AnyModel, Kernel } from "./anywidget";

const ENDED = ["dead", "terminating", "restarting", "autorestarting"];

/** Call `lost` once when the Python side of this model is gone; returns what ends the watch. */
export function watchKernel(model: AnyModel, lost: () => void): () => void {
  const kernel: Kernel | null | undefined = model.widget_manager?.kernel;
  let over = false;
  const end = () => {
    if (over) return;
    over = true;
    lost();
  };
  // JupyterLab's widgets hear of a restart that was asked for, and not of a kernel that died and was started again.
  const hear = (_: unknown, status: string) => { if (ENDED.includes(status)) end(); };
  kernel?.statusChanged?.connect(hear);
  kernel?.disposed?.connect(end);
  if (!kernel) model.on("comm_live_update", end); // all that is known in other front ends
  return () => {
    kernel?.statusChanged?.disconnect(hear);
    kernel?.disposed?.disconnect(end);
    model.off("comm_live_update", end);
  };
}
