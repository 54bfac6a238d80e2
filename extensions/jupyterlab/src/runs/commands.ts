// The commands on runs, for the palette, menus, shortcuts and other plugins: those with args act on these runs, the others on the
// runs that are selected in the Runs panel.

import { Clipboard, Dialog, showDialog, showErrorMessage } from "@jupyterlab/apputils";
import type { CommandRegistry } from "@lumino/commands";
import type { ReadonlyPartialJSONObject } from "@lumino/coreutils";
import { ApiError } from "../api";
import type { Client } from "../client";
import { isLive, keyOf, stateOf } from "../messages";
import type { CommandType, Ref, Row } from "../messages";
import type { Texts } from "../texts";
import { EditForm } from "./edit-form";
import type { RunList } from "./list";
import { nameOf } from "./words";

const PREFIX = "tuning-workbench:";

/** Ids of the commands; other files of the extension have those of `open`, `compare`, `continue`, `settings` and `export`. */
export const ids = {
  show: `${PREFIX}show-runs`,
  open: `${PREFIX}open-run`,
  compare: `${PREFIX}compare-runs`,
  stop: `${PREFIX}stop-run`,
  pause: `${PREFIX}pause-run`,
  resume: `${PREFIX}resume-run`,
  validate: `${PREFIX}validate-run`,
  checkpoint: `${PREFIX}checkpoint-run`,
  annotate: `${PREFIX}annotate-run`,
  pin: `${PREFIX}pin-runs`,
  unpin: `${PREFIX}unpin-runs`,
  copyId: `${PREFIX}copy-run-id`,
  delete: `${PREFIX}delete-runs`,
  continue: `${PREFIX}continue-run`,
  settings: `${PREFIX}insert-settings`,
  export: `${PREFIX}export-run`,
} as const;

/** The runs that a command is for, from its arguments: {root, run}, or {runs: [{root, run}, …]}; else those selected. */
export function refsOf(args: ReadonlyPartialJSONObject, list: RunList): Ref[] {
  if (Array.isArray(args["runs"])) return args["runs"] as unknown as Ref[];
  if (typeof args["run"] === "string") return [args as unknown as Ref];
  return list.chosen;
}

export function addCommands(commands: CommandRegistry, client: Client, list: RunList, texts: Texts): void {
  new RunCommands(commands, client, list, texts).add();
}

class RunCommands {
  constructor(
    private readonly commands: CommandRegistry,
    private readonly client: Client,
    private readonly list: RunList,
    private readonly texts: Texts,
  ) {}

  add(): void {
    const { commands: words } = this.texts;
    const takes = (row: Row) => row.commands;
    this.one(ids.stop, words.stop, (ref) => this.stop(ref), takes);
    this.one(ids.pause, words.pause, (ref) => this.send(ref, "Pause"), (row) => takes(row) && stateOf(row) === "running");
    this.one(ids.resume, words.resume, (ref) => this.send(ref, "Resume"), (row) => takes(row) && stateOf(row) === "paused");
    for (const [id, label, type] of [[ids.validate, words.validate, "Validate"], [ids.checkpoint, words.checkpoint, "Checkpoint"]] as const) {
      this.one(id, label, (ref) => this.send(ref, type), (row) => takes(row) && row.kind === "fit");
    }
    this.one(ids.annotate, words.annotate, (ref) => this.annotate(ref));
    this.one(ids.copyId, words.copyId, async (ref) => Clipboard.copyToSystem(ref.run));
    this.several(ids.pin, words.pin, (refs) => this.pin(refs, true));
    this.several(ids.unpin, words.unpin, (refs) => this.pin(refs, false));
    this.several(ids.delete, words.delete, (refs) => this.remove(refs), (row) => !isLive(row) || row.status.endsWith("?"));
  }

  /** A command for one run; `can`: whether it is possible for that run as it is now. */
  private one(id: string, label: string, work: (ref: Ref) => Promise<void>, can: (row: Row) => boolean = () => true): void {
    this.several(id, label, ([ref]) => work(ref!), can, 1);
  }

  private several(id: string, label: string, work: (refs: Ref[]) => Promise<void>, can: (row: Row) => boolean = () => true, most = Infinity): void {
    this.commands.addCommand(id, {
      label,
      isEnabled: (args) => {
        const refs = refsOf(args, this.list);
        return refs.length > 0 && refs.length <= most && refs.every((ref) => {
          const row = this.row(ref);
          return row === undefined || can(row); // of one that is not in the list, the server decides
        });
      },
      execute: async (args) => {
        try {
          await work(refsOf(args, this.list));
        } catch (error) {
          await showErrorMessage(this.texts.refused, error instanceof Error ? error.message : String(error));
        }
      },
    });
  }

  private row(ref: Ref): Row | undefined {
    return this.client.live.get(keyOf(ref)) ?? this.list.row(keyOf(ref));
  }

  private async send(ref: Ref, type: CommandType): Promise<void> {
    await this.client.api.command(ref, type);
  }

  private async stop(ref: Ref): Promise<void> {
    const row = this.row(ref);
    const { texts } = this;
    if (await this.agreed(texts.stopTitle(row ? nameOf(row) : ref.run), texts.stopBody, texts.stop)) await this.send(ref, "Stop");
  }

  private async annotate(ref: Ref): Promise<void> {
    const row = this.row(ref) ?? (await this.client.api.run(ref)).row;
    const { texts } = this;
    const buttons = [Dialog.cancelButton({ label: texts.cancel }), Dialog.okButton({ label: texts.save })];
    const { button, value } = await showDialog({ title: texts.editTitle(ref.run), body: new EditForm(row, texts), buttons, focusNodeSelector: "input" });
    if (!button.accept || value === null) return;
    await this.client.api.annotate(ref, value);
    this.client.changed();
  }

  private async pin(refs: Ref[], pinned: boolean): Promise<void> {
    await Promise.all(refs.map((ref) => this.client.api.annotate(ref, { pinned })));
    this.client.changed();
  }

  private async remove(refs: Ref[]): Promise<void> {
    const { texts } = this;
    if (!(await this.agreed(texts.deleteTitle(refs.length), texts.deleteBody(refs.map(({ run }) => run)), texts.delete))) return;
    try {
      for (const ref of refs) await this.removeOne(ref);
    } finally {
      this.client.changed(); // also where one of them was refused
    }
  }

  private async removeOne(ref: Ref): Promise<void> {
    try {
      await this.client.api.remove(ref);
    } catch (error) {
      // One whose process cannot be seen from here: the person may know that it has ended.
      if (!(error instanceof ApiError) || error.status !== 409 || !this.row(ref)?.status.endsWith("?")) throw error;
      if (await this.agreed(this.texts.forceTitle(ref.run), error.message, this.texts.delete)) await this.client.api.remove(ref, true);
    }
  }

  private async agreed(title: string, body: string, label: string): Promise<boolean> {
    const buttons = [Dialog.cancelButton({ label: this.texts.cancel }), Dialog.warnButton({ label })];
    return (await showDialog({ title, body, buttons, defaultButton: 0 })).button.accept;
  }
}
