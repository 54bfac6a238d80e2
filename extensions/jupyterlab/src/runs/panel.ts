// The Runs panel: filters at its top, the list, and below it what can be done with the selected runs.

import type { CommandRegistry } from "@lumino/commands";
import type { Message } from "@lumino/messaging";
import { Widget } from "@lumino/widgets";
import { Notification } from "@jupyterlab/apputils";
import { el, focusIn, setText } from "../../../live/src/shared/dom";
import type { Client } from "../client";
import { keyOf } from "../messages";
import type { Event, Row } from "../messages";
import type { Texts } from "../texts";
import { runsIcon } from "../icon";
import { Filters } from "./filters";
import { COMPARED } from "./list";
import type { RunList } from "./list";
import { actionsFor, buttonFor, menuOf } from "./menu";
import { type PendingDeletions, UNDO_MS } from "./pending-deletions";
import { RowView, setLine } from "./row";
import { StudyList } from "./studies";
import { ids } from "./commands";

/** Between two loads of the list at least: many runs may begin at once. */
const PAUSE_MS = 1000;
/** So near to its end, the list loads more. */
const NEAR_PX = 200;

export class RunsPanel extends Widget {
  private readonly filters: Filters;
  private readonly notice = el("div", "wb-side-notice", "", { role: "status" });
  private readonly noticeText = el("span");
  private readonly noticeButton = el("button", "wb-side-button", "", { type: "button" });
  private readonly rows = new Map<string, RowView>();
  private readonly deleted = el("div", "wb-side-deleted", "", { role: "status" });
  private readonly body = el("div", "wb-side-list", "", { role: "listbox", "aria-multiselectable": "true", tabindex: "0" });
  private readonly end = el("div", "wb-side-end");
  private readonly more = el("button", "wb-side-button", "", { type: "button" });
  private readonly caption = el("div", "wb-side-caption", "", { role: "status" });
  private readonly actions = el("div", "wb-side-actions", "", { role: "toolbar" });
  private readonly studies: StudyList;
  private drawnActions = "";
  private timer: ReturnType<typeof setTimeout> | undefined;
  private loadedAt = 0;
  private stale = true;

  constructor(
    private readonly client: Client,
    private readonly list: RunList,
    private readonly commands: CommandRegistry,
    private readonly deletions: PendingDeletions,
    private readonly texts: Texts,
  ) {
    super();
    this.id = "tuning-workbench-runs";
    this.addClass("wb-side");
    this.title.icon = runsIcon;
    this.title.caption = texts.panelCaption;
    this.filters = new Filters(list, texts);
    this.studies = new StudyList(client.api, (ref) => void commands.execute(ids.openStudy, { ...ref }), texts);
    this.body.setAttribute("aria-label", texts.list);
    this.body.title = texts.listHint;
    this.actions.setAttribute("aria-label", texts.actions);
    this.notice.append(this.noticeText, this.noticeButton);
    this.end.append(this.more);
    const scroll = el("div", "wb-side-scroll");
    scroll.append(this.studies.root, this.body, this.end);
    this.node.append(this.filters.root, this.notice, this.deleted, scroll, this.caption, this.actions);
    this.body.addEventListener("click", (event) => this.clicked(event));
    this.body.addEventListener("dblclick", (event) => this.open(this.rowAt(event), true));
    this.body.addEventListener("keydown", (event) => this.pressed(event));
    this.body.addEventListener("contextmenu", (event) => this.context(event));
    this.more.addEventListener("click", () => void list.more());
    scroll.addEventListener("scroll", () => {
      if (scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < NEAR_PX) void list.more();
    });
    list.changed.connect(this.update, this);
    deletions.changed.connect(this.drawDeletions, this);
    client.linked.connect(this.linkChanged, this);
    client.events.connect(this.heard, this);
  }

  override dispose(): void {
    clearTimeout(this.timer);
    this.studies.stop();
    super.dispose();
  }

  /** What is not seen is not loaded. */
  protected override onAfterShow(_: Message): void {
    if (this.stale) this.reload();
    if (this.client.link !== "absent") this.studies.start();
    this.update();
  }

  protected override onBeforeHide(_: Message): void {
    this.studies.stop();
  }

  protected override onActivateRequest(_: Message): void {
    (this.rows.get(this.list.active ?? "")?.root ?? this.body).focus();
  }

  protected override onUpdateRequest(_: Message): void {
    if (!this.isVisible) return;
    this.drawRows();
    this.drawNotice();
    this.filters.draw();
    this.drawEnd();
    this.drawActions();
  }

  private heard(_: Client, event: Event): void {
    if (!this.list.hear(event)) return;
    this.loadSoon();
    if (this.isVisible) this.studies.start(); // the run may be a study's first one
  }

  private linkChanged(): void {
    if (this.client.link === "open" && this.isVisible) this.studies.start();
    if (this.client.link === "open") this.loadSoon(); // something may have changed meanwhile
    this.update();
  }

  private loadSoon(): void {
    this.stale = true;
    if (this.timer !== undefined || !this.isVisible) return;
    this.timer = setTimeout(() => {
      this.timer = undefined;
      this.reload();
    }, Math.max(0, this.loadedAt + PAUSE_MS - Date.now()));
  }

  private reload(): void {
    if (!this.isVisible || this.client.link === "absent") return;
    this.stale = false;
    this.loadedAt = Date.now();
    void this.list.refresh().then(() => {
      if (this.list.page?.reading) this.loadSoon();
    });
  }

  // -- drawing --------------------------------------------------------------------------------------------------

  /** What is being deleted, with the way back; where this panel is closed, in a notification. */
  private drawDeletions(): void {
    const { texts, deletions, list } = this;
    const before = this.deleted.children.length;
    const held = focusIn(this.body) !== null || focusIn(this.deleted) !== null || focusIn(this.actions) !== null;
    const lines = deletions.pending.map((deletion) => {
      const runs = deletion.refs.map(({ run }) => run);
      const undo = el("button", "wb-side-button", texts.undo, { type: "button", "aria-label": texts.undoLabel(runs), title: texts.undoHint });
      undo.addEventListener("click", () => {
        deletions.undo(deletion);
        deletion.refs.forEach((ref, i) => list.select(ref, i === 0 ? "one" : "toggle")); // as it was before
        this.drawRows();
        (this.rows.get(list.active ?? "")?.root ?? this.body).focus();
      });
      const line = el("div", "", texts.deleted(runs));
      line.append(undo);
      return line;
    });
    this.deleted.replaceChildren(...lines);
    this.deleted.hidden = lines.length === 0;
    list.hide((row) => deletions.has(row));
    const last = deletions.pending.at(-1);
    if (lines.length > before && !this.isVisible && last !== undefined) {
      const actions = [{ label: texts.undo, callback: () => deletions.undo(last) }];
      Notification.emit(texts.deleted(last.refs.map(({ run }) => run)), "default", { autoClose: UNDO_MS, actions });
    } else if (held && lines.length > before) this.deleted.querySelector<HTMLElement>("div:last-child > button")?.focus();
    else if (held && focusIn(this.node) === null) (this.rows.get(list.active ?? "")?.root ?? this.body).focus();
  }

  private drawRows(): void {
    const { rows, selected, active } = this.list;
    const held = focusIn(this.body);
    const keys = rows.map(keyOf);
    const there = new Set(keys);
    for (const [key, view] of this.rows) {
      if (there.has(key)) continue;
      view.root.remove();
      this.rows.delete(key);
    }
    rows.forEach((row, i) => {
      const key = keys[i]!;
      let view = this.rows.get(key);
      if (view === undefined) this.rows.set(key, (view = new RowView(this.texts)));
      view.show(row);
      view.mark(selected.has(key), key === active);
      if (this.body.children[i] !== view.root) this.body.insertBefore(view.root, this.body.children[i] ?? null);
    });
    this.body.tabIndex = active === null ? 0 : -1; // one stop of the Tab key, wherever the keyboard is in the list
    this.body.hidden = rows.length === 0; // a list box without options is none
    if (held !== null) (this.rows.get(active ?? "")?.root ?? this.body).focus({ preventScroll: true });
  }

  /** Why there is nothing to see, or why it may be old, and what to do. */
  private drawNotice(): void {
    const { texts, list, client } = this;
    const filtered = list.asks.search || list.asks.status || list.asks.tag || list.asks.root;
    const [text, button, pressed]: [string, string, () => void] =
      client.link === "absent" ? [texts.absent, "", () => {}]
      : client.link === "lost" ? [texts.lost, texts.retry, () => client.retry()]
      : list.error ? [texts.failed(list.error), texts.retry, () => void list.refresh()]
      : list.page === null ? [texts.loading, "", () => {}]
      : list.rows.length > 0 || list.page.reading ? ["", "", () => {}]
      : filtered ? [texts.noMatch, texts.clear, () => this.filters.clear()]
      : [texts.none, "", () => {}];
    this.notice.hidden = text === "";
    this.notice.classList.toggle("wb-side-warns", client.link === "lost" || list.error !== "");
    setText(this.noticeText, text);
    setLine(this.noticeButton, button);
    this.noticeButton.onclick = pressed;
  }

  private drawEnd(): void {
    const { texts, list } = this;
    const { rows, page, chosen } = list;
    this.end.hidden = !list.hasMore;
    if (page === null || page.total === 0) return setLine(this.caption, "");
    setText(this.more, texts.more(page.matching - rows.length));
    const count = page.matching === page.total ? texts.count(page.total) : texts.countOf(page.matching, page.total);
    const picked = chosen.length > COMPARED ? texts.tooMany(chosen.length, COMPARED) : chosen.length > 1 ? texts.selected(chosen.length) : "";
    setLine(this.caption, [count, picked, page.reading ? texts.reading : ""].filter(Boolean).join(" · "));
  }

  private drawActions(): void {
    const { chosen } = this.list;
    const [first = []] = actionsFor(chosen);
    const there = first.filter(({ command }) => this.commands.hasCommand(command));
    const drawn = JSON.stringify(there.map(({ command, args }) => [command, args, this.commands.isEnabled(command, args)]));
    this.actions.hidden = chosen.length === 0;
    if (drawn === this.drawnActions) return;
    this.drawnActions = drawn;
    const held = focusIn(this.actions)?.dataset["command"];
    const buttons = there.map(({ command, args }) => {
      const button = this.button(this.commands.label(command, args), command, () => void this.commands.execute(command, args));
      button.disabled = !this.commands.isEnabled(command, args);
      return button;
    });
    const more = this.button(this.texts.moreActions, "", () => this.openMenu(more.getBoundingClientRect().left, more.getBoundingClientRect().bottom));
    more.setAttribute("aria-haspopup", "menu");
    this.actions.replaceChildren(...buttons, more);
    if (held !== undefined) (buttonFor(this.actions, held) ?? more).focus();
  }

  private button(text: string, command: string, pressed: () => void): HTMLButtonElement {
    const button = el("button", "wb-side-button", text, { type: "button", "data-command": command });
    button.addEventListener("click", pressed);
    return button;
  }

  // -- mouse and keyboard ---------------------------------------------------------------------------------------

  private rowAt(event: MouseEvent): Row | undefined {
    const at = (event.target as Element).closest(".wb-side-row");
    const found = [...this.rows].find(([, view]) => view.root === at);
    return found && this.list.row(found[0]);
  }

  /** A click opens the run, and the keyboard stays in the list; with Shift, Ctrl or Cmd it selects several. */
  private clicked(event: MouseEvent): void {
    const row = this.rowAt(event);
    if (row === undefined) return;
    const how = event.shiftKey ? "to" : event.ctrlKey || event.metaKey ? "toggle" : "one";
    this.list.select(row, how);
    if (how === "one") this.open(row, false);
  }

  /** activate: the keyboard goes to the pane. */
  private open(row: Row | undefined, activate: boolean): void {
    if (row && this.commands.hasCommand(ids.open)) void this.commands.execute(ids.open, { root: row.root, run: row.run, activate });
  }

  /** The keys of a list box: arrows move, with Shift they select, Space toggles, Enter opens. */
  private pressed(event: KeyboardEvent): void {
    const { rows, active } = this.list;
    const at = rows.findIndex((row) => keyOf(row) === active);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1 }[event.key];
    const row = rows[at];
    if (to !== undefined) this.moveTo(Math.min(Math.max(to, 0), rows.length - 1), event);
    else if (event.key === "Enter") this.open(row, true);
    else if (event.key === " " && row) this.list.select(row, "toggle");
    else if (event.key === "ContextMenu" || (event.key === "F10" && event.shiftKey)) this.menuAt(row);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  private moveTo(at: number, event: KeyboardEvent): void {
    const row = this.list.rows[at];
    if (row === undefined) return;
    if (event.ctrlKey) {
      this.list.active = keyOf(row); // the keyboard moves, and the selection stays
      this.list.changed.emit();
    } else {
      this.list.select(row, event.shiftKey ? "to" : "one");
    }
    this.drawRows();
    const { root } = this.rows.get(keyOf(row))!;
    root.focus();
    root.scrollIntoView({ block: "nearest" });
  }

  private context(event: MouseEvent): void {
    const row = this.rowAt(event);
    if (row === undefined || event.shiftKey) return; // with Shift, the browser's own
    event.preventDefault();
    event.stopPropagation();
    if (!this.list.selected.has(keyOf(row))) this.list.select(row, "one");
    this.openMenu(event.clientX, event.clientY);
  }

  private menuAt(row: Row | undefined): void {
    if (row === undefined) return;
    if (!this.list.selected.has(keyOf(row))) this.list.select(row, "one");
    const { left, bottom } = this.rows.get(keyOf(row))!.root.getBoundingClientRect();
    this.openMenu(left + 16, bottom);
  }

  private openMenu(x: number, y: number): void {
    const { chosen } = this.list;
    if (chosen.length > 0) menuOf(this.commands, actionsFor(chosen)).open(x, y);
  }
}
