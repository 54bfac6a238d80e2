// The commands that change runs, for the palette, menus, shortcuts and other plugins.

import { Clipboard, Dialog, showDialog, showErrorMessage } from "@jupyterlab/apputils";
import type { CommandRegistry } from "@lumino/commands";
import { changesOf } from "../../../live/src/shared/edited";
import { ApiError, STALE } from "../api";
import type { Client } from "../client";
import { isLive, keyOf, stateOf } from "../messages";
import type { Annotations, CommandType, Ref, Row } from "../messages";
import type { Texts } from "../texts";
import { EditForm } from "./edit-form";
import type { RunsInUse } from "./in-use";
import type { RunList } from "./list";
import { PendingDeletions } from "./pending-deletions";
import { addRunCommand, ONE, SOME } from "./run-command";
import { nameOf } from "./words";

const PREFIX = "tuning-workbench:";

/** Ids of the commands; other files of the extension have those of `open`, `openStudy`, `compare`, `continue`, `rerun`, `settings` and `export`. */
export const ids = {
  show: `${PREFIX}show-runs`,
  open: `${PREFIX}open-run`,
  openStudy: `${PREFIX}open-study`,
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
  rerun: `${PREFIX}rerun-run`,
  settings: `${PREFIX}insert-settings`,
  export: `${PREFIX}export-run`,
} as const;

/** Returns the deletions that can be undone. */
export function addCommands(commands: CommandRegistry, client: Client, list: RunList, inUse: RunsInUse, texts: Texts): PendingDeletions {
  const all = new RunCommands(commands, client, list, inUse, texts);
  all.add();
  return all.deletions;
}

class RunCommands {
  readonly deletions = new PendingDeletions((refs) => this.remove(refs));

  constructor(
    private readonly commands: CommandRegistry,
    private readonly client: Client,
    private readonly list: RunList,
    private readonly inUse: RunsInUse,
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
    this.several(ids.delete, words.delete, async (refs) => this.deletions.add(refs), (row) => !isLive(row) || row.status.endsWith("?"));
  }

  /** A command for one run; `can`: whether the run can do it now. */
  private one(id: string, label: string, work: (ref: Ref) => Promise<void>, can?: (row: Row) => boolean): void {
    this.several(id, label, ([ref]) => work(ref!), can, ONE);
  }

  private several(id: string, label: string, work: (refs: Ref[]) => Promise<void>, can: (row: Row) => boolean = () => true, count: typeof ONE | typeof SOME = SOME): void {
    const each = (ref: Ref) => {
      const row = this.row(ref);
      return row === undefined || can(row); // of one that is not in the list, the server decides
    };
    addRunCommand(this.commands, this.inUse, this.texts, { id, label, count, can: (refs) => refs.every(each), work });
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
    let { row } = await this.client.api.run(ref); // what the list knows may be older than another tab's changes
    const { texts } = this;
    const buttons = [Dialog.cancelButton({ label: texts.cancel }), Dialog.okButton({ label: texts.save })];
    let typed: Annotations = {};
    for (;;) {
      const body = new EditForm(row, texts, typed);
      const { button, value } = await showDialog({ title: texts.editTitle(ref.run), body, buttons, focusNodeSelector: "input" });
      if (!button.accept || value === null || Object.keys(value).length === 0) return;
      const now = await this.save(ref, value, row);
      if (now === null) break;
      [row, typed] = [now, value];
    }
    this.client.changed();
  }

  /** Save changes of a row. Returns the row as it is now, if somebody else has changed the same fields meanwhile; null: they are saved. */
  private async save(ref: Ref, changes: Annotations, before: Row): Promise<Row | null> {
    for (let row = before; ; ) {
      try {
        await this.client.api.annotate(ref, changes, row.version);
        return null;
      } catch (error) {
        if (!(error instanceof ApiError) || error.status !== STALE) throw error;
        ({ row } = await this.client.api.run(ref));
        const theirs = changesOf(before, { name: row.name, tags: row.tags, notes: row.notes });
        if (Object.keys(changes).some((name) => name in theirs)) return row;
      }
    }
  }

  private async pin(refs: Ref[], pinned: boolean): Promise<void> {
    try {
      await Promise.all(refs.map((ref) => this.client.api.annotate(ref, { pinned })));
    } finally {
      this.client.changed(); // also where one of them was refused
    }
  }

  private async remove(refs: Ref[]): Promise<void> {
    try {
      for (const ref of refs) await this.removeOne(ref);
    } catch (error) {
      await showErrorMessage(this.texts.refused, error instanceof Error ? error.message : String(error));
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
