// Adds a command on runs. It is enabled for the right number of runs, and shows why the server refused it.

import { showErrorMessage } from "@jupyterlab/apputils";
import type { CommandRegistry } from "@lumino/commands";
import type { Ref } from "../messages";
import type { Texts } from "../texts";
import type { RunsInUse } from "./in-use";

export interface RunCommand {
  id: string;
  label: string;
  caption?: string;
  /** For how many runs it is: at least, and at most. */
  count: readonly [least: number, most: number];
  /** Whether it is possible for these runs as they are now. */
  can?: (refs: Ref[]) => boolean;
  work: (refs: Ref[], args: { activate: boolean }) => unknown;
}

/** Of `count`: one run, or any number. */
export const ONE = [1, 1] as const, SOME = [1, Infinity] as const;

export function addRunCommand(commands: CommandRegistry, inUse: RunsInUse, texts: Texts, { id, label, caption = "", count, can, work }: RunCommand): void {
  const [least, most] = count;
  const fits = (refs: Ref[]) => refs.length >= least && refs.length <= most;
  commands.addCommand(id, {
    label,
    caption,
    isEnabled: (args) => {
      const refs = inUse.of(args);
      return fits(refs) && (can?.(refs) ?? true);
    },
    execute: async (args) => {
      try {
        const refs = inUse.of(args);
        if (!fits(refs)) throw new Error(texts.choose(least, most, refs.length));
        return await work(refs, { activate: args["activate"] !== false });
      } catch (error) {
        await showErrorMessage(texts.refused, error instanceof Error ? error.message : String(error));
        return undefined;
      }
    },
  });
}
