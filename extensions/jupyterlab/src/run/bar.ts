// The head of a run's pane: its state in words, and what can be done with it.

import type { CommandRegistry } from "@lumino/commands";
import { el, focusIn, setText } from "../../../live/src/shared/dom";
import { stateOf, type Details } from "../messages";
import { ids } from "../runs/commands";
import { actionsFor, buttonFor, menuOf } from "../runs/menu";
import { nameOf, progressOf, shapeOf, statusOf } from "../runs/words";
import type { Texts } from "../texts";
import type { PaneTexts } from "./texts";

/** What has a button of its own; the other actions are in the menu. */
const BUTTONS: string[] = [ids.pause, ids.resume, ids.stop, ids.validate, ids.checkpoint, ids.continue, ids.rerun, ids.settings, ids.export];

export class RunBar {
  readonly root: HTMLElement;
  private readonly name = el("h2");
  private readonly id = el("span", "wb-pane-quiet");
  private readonly status = el("span", "wb-pane-status", "", { role: "status" });
  private readonly far = el("progress", "", "", { max: "1" });
  private readonly facts = el("span", "wb-pane-quiet");
  private readonly buttons = el("div", "wb-pane-buttons");
  private readonly why = el("p", "wb-pane-quiet");
  private shown = "";
  /** As drawn last. */
  private row: Details["row"] | null = null;

  constructor(private readonly commands: CommandRegistry, private readonly texts: Texts, private readonly words: PaneTexts) {
    this.root = el("header", "wb-pane-bar", "", { "aria-label": words.bar });
    const line = el("div", "wb-pane-bar-line");
    line.append(this.name, this.id, this.status, this.far, this.facts);
    this.root.append(line, this.buttons, this.why);
  }

  draw({ row, why_no_commands }: Details): void {
    const { texts, words } = this;
    this.row = row;
    setText(this.name, nameOf(row));
    setText(this.id, row.name ? row.run : "");
    this.status.dataset["status"] = stateOf(row);
    setText(this.status, [`${shapeOf(row)} ${statusOf(row, texts)}`, row.trouble?.[1]].filter(Boolean).join(" · "));
    this.far.hidden = row.progress === null || !["running", "paused"].includes(stateOf(row));
    this.far.value = row.progress ?? 0;
    this.far.setAttribute("aria-label", progressOf(row, texts));
    setText(this.facts, progressOf(row, texts));
    const waits = ["queued", "running", "paused"].includes(stateOf(row)) && !row.commands && why_no_commands;
    setText(this.why, waits ? words.noCommands(why_no_commands) : "");
    this.why.hidden = !waits;
    this.drawButtons(row);
  }

  /** The buttons are made again only where others are needed: they keep the keyboard's focus. */
  private drawButtons(row: Details["row"]): void {
    const groups = actionsFor([row]);
    const actions = groups.flat().filter(({ command }) => command !== ids.open && this.commands.hasCommand(command));
    const own = actions.filter(({ command }) => BUTTONS.includes(command));
    const shown = own.map(({ command }) => command).join(" ");
    const held = focusIn(this.buttons);
    if (shown !== this.shown) {
      this.shown = shown;
      this.buttons.replaceChildren(...own.map(({ command, args }) => this.button(command, this.commands.label(command, args), () => void this.commands.execute(command, args))));
      this.buttons.append(this.more());
    }
    for (const button of this.buttons.querySelectorAll<HTMLButtonElement>("[data-command]")) {
      const action = own.find(({ command }) => command === button.dataset["command"]);
      if (action) button.disabled = !this.commands.isEnabled(action.command, action.args);
    }
    if (held !== null && focusIn(this.buttons) === null) (buttonFor(this.buttons, held.dataset["command"] ?? "") ?? this.buttons.querySelector<HTMLElement>("[aria-haspopup]"))?.focus();
  }

  private button(command: string, label: string, act: () => void): HTMLButtonElement {
    const made = el("button", "wb-pane-button", label, { type: "button", title: this.commands.caption(command) });
    made.dataset["command"] = command;
    made.addEventListener("click", act);
    return made;
  }

  private more(): HTMLButtonElement {
    const made = el("button", "wb-pane-button", this.words.more, { type: "button", title: this.words.moreHint, "aria-haspopup": "menu" });
    made.addEventListener("click", () => {
      if (this.row === null) return;
      const groups = actionsFor([this.row]).map((group) => group.filter(({ command }) => command !== ids.open && !BUTTONS.includes(command)));
      const { left, bottom } = made.getBoundingClientRect();
      menuOf(this.commands, groups).open(left, bottom);
    });
    return made;
  }
}
