// What can be done with the selected runs: the buttons below the list, and the menu of a right click.

import type { CommandRegistry } from "@lumino/commands";
import type { ReadonlyJSONObject } from "@lumino/coreutils";
import { Menu } from "@lumino/widgets";
import { isLive, stateOf } from "../messages";
import type { Row } from "../messages";
import { ids } from "./commands";
import { COMPARED } from "./list";

interface Item {
  command: string;
  args: ReadonlyJSONObject;
}

/** The commands for these runs, in groups; those in the first group have buttons. */
export function actionsFor(rows: Row[]): Item[][] {
  const refs = rows.map(({ root, run }) => ({ root, run }));
  const [row] = rows;
  if (row === undefined) return [];
  const all = (command: string): Item => ({ command, args: { runs: refs } });
  const pin = all(rows.every(({ pinned }) => pinned) ? ids.unpin : ids.pin);
  if (rows.length > 1) {
    const compare = rows.length <= COMPARED ? [all(ids.compare)] : [];
    return [[...compare, all(ids.delete)], [pin]];
  }
  const one = (command: string): Item => ({ command, args: { ...refs[0] } });
  const common = [[one(ids.annotate), pin, one(ids.copyId), one(ids.settings)]];
  if (!isLive(row)) return [[one(ids.open), one(ids.continue), one(ids.rerun)], [one(ids.export)], ...common, [all(ids.delete)]];
  const wait = one(stateOf(row) === "paused" ? ids.resume : ids.pause);
  return [[one(ids.open), wait, one(ids.stop)], [one(ids.validate), one(ids.checkpoint)], ...common, [all(ids.delete)]];
}

/** A menu of these actions; those of other plugins that are not there are left out. When it closes, the focus is where it was. */
export function menuOf(commands: CommandRegistry, groups: Item[][]): Menu {
  const menu = new Menu({ commands });
  const there = groups.map((group) => group.filter(({ command }) => commands.hasCommand(command))).filter((group) => group.length > 0);
  there.forEach((group, i) => {
    if (i > 0) menu.addItem({ type: "separator" });
    group.forEach((item) => menu.addItem(item));
  });
  const held = document.activeElement;
  menu.aboutToClose.connect(() => {
    if (held instanceof HTMLElement) held.focus({ preventScroll: true });
    setTimeout(() => menu.dispose()); // its command runs first
  });
  return menu;
}

/**
 * Where the focus of a button belongs after the buttons were made again: on that of the same command, or of Pause and Resume on the
 * other. Never on another command: whoever presses Enter now would execute it.
 */
export function buttonFor(buttons: HTMLElement, command: string): HTMLButtonElement | null {
  const same = command === ids.pause || command === ids.resume ? [ids.pause, ids.resume] : [command];
  return buttons.querySelector(same.map((id) => `[data-command="${id}"]:enabled`).join());
}
