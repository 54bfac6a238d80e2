// Finds the panel of a bench in a notebook: in the outputs of its cells, or by showing a bench that its kernel has.

import type { CodeCell } from "@jupyterlab/cells";
import type { NotebookPanel } from "@jupyterlab/notebook";
import type { Kernel } from "@jupyterlab/services";
import { benchesOf } from "../notebook/benches";
import { ask, within } from "../notebook/kernel";

export const WIDGET = "application/vnd.jupyter.widget-view+json";
/** The first words of the text that Python shows where no widget can be (workbench/ui/texts.py: panel_title). */
const TITLE = "Tuning Workbench · ";
const KERNEL_MS = 2000;
const SHOW = `
from IPython.utils.capture import capture_output
from IPython.display import display
with capture_output() as shown:
    display(user[given["bench"]])
views = [output.data[given["type"]]["model_id"] for output in shown.outputs if given["type"] in output.data]
answer = {"model": views[0] if views else ""}`;

/** The ids of the panels in the outputs of the cells: first that of cell `from`, then from the last cell up. */
export function panelsIn(panel: NotebookPanel, from = panel.content.activeCellIndex): string[] {
  const cells = [...panel.content.widgets].reverse();
  const first = panel.content.widgets[from];
  const ordered = first === undefined ? cells : [first, ...cells.filter((cell) => cell !== first)];
  const ids = ordered.flatMap((cell) => (cell.model.type === "code" ? panelsOf(cell as CodeCell) : []));
  return [...new Set(ids)];
}

/**
 * The id of a panel that lives in the notebook's kernel, `wanted` if that does; null: there is no bench. `choose` is asked which of several
 * benches is meant. A kernel that is busy cannot say what lives: then it is the first that comes into question.
 */
export async function findPanel(panel: NotebookPanel, wanted: string, choose: (names: string[]) => Promise<string | null>): Promise<string | null> {
  const kernel = panel.sessionContext.session?.kernel;
  if (!kernel) return null;
  const known = [wanted, ...panelsIn(panel)].filter(Boolean);
  const living = await within(widgetsOf(kernel), KERNEL_MS);
  if (living === undefined) return known[0] ?? null;
  return known.find((id) => living.has(id)) ?? (await showBench(kernel, choose));
}

/** The ids of the widgets that a kernel has. */
async function widgetsOf(kernel: Kernel.IKernelConnection): Promise<Set<string>> {
  const { content } = await kernel.requestCommInfo({ target_name: "jupyter.widget" });
  return new Set(content.status === "ok" ? Object.keys(content.comms) : []);
}

async function showBench(kernel: Kernel.IKernelConnection, choose: (names: string[]) => Promise<string | null>): Promise<string | null> {
  const names = (await benchesOf(kernel)).map(({ name }) => name);
  const bench = names.length < 2 ? names[0] : await choose(names);
  if (!bench) return null;
  return (await ask<{ model: string }>(kernel, SHOW, { bench, type: WIDGET })).model || null;
}

function panelsOf(cell: CodeCell): string[] {
  const { outputs } = cell.model;
  const ids: string[] = [];
  for (let i = 0; i < outputs.length; i += 1) {
    const { data } = outputs.get(i);
    const view = data[WIDGET] as { model_id?: unknown } | undefined;
    const text = data["text/plain"];
    const title = Array.isArray(text) ? text.join("") : text;
    if (typeof view?.model_id === "string" && view.model_id && typeof title === "string" && title.startsWith(TITLE)) ids.push(view.model_id);
  }
  return ids;
}
