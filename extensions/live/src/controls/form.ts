// The form of all settings: a search over names and help, what differs from the default on top, and a section for each group. Any number
// of sections is open; which ones are stays over a reload.

import { spark } from "../runs/sparkline";
import { el, setText } from "../shared/dom";
import type { Store } from "../data/store";
import type { FormGroup, FormSetting } from "../data/messages";
import { texts } from "../texts";
import { PanelButton } from "./button";
import { Field } from "./field";

const { form: words } = texts;

interface Row {
  setting: FormSetting;
  root: HTMLElement;
  field: Field;
  find: PanelButton;
}

interface Section {
  group: string;
  root: HTMLDetailsElement;
  note: HTMLElement;
  rows: Row[];
}

let helps = 0;

export class Form {
  readonly root = el("div", "wb-form");
  private readonly search = el("input", "wb-box wb-form-search", "", { type: "search", placeholder: words.search, "aria-label": words.search });
  private readonly openAll = el("button", "wb-tool", words.openAll, { type: "button" });
  private readonly closeAll = el("button", "wb-tool", words.closeAll, { type: "button" });
  private readonly changed = el("div", "wb-form-changed");
  private readonly none = el("p", "wb-form-none", words.noMatch, { role: "status" });
  private readonly list = el("div");
  private readonly schedule = el("div", "wb-form-schedule");
  private sections: Section[] = [];
  private told = "";

  constructor(private readonly store: Store) {
    const bar = el("div", "wb-form-bar");
    bar.append(this.search, this.openAll, this.closeAll);
    this.search.addEventListener("input", () => this.filter());
    this.openAll.addEventListener("click", () => this.keep(this.sections.map(({ group }) => group)));
    this.closeAll.addEventListener("click", () => this.keep([]));
    this.root.append(bar, this.changed, this.none, this.list);
    this.draw();
  }

  draw(): void {
    const { form } = this.store.state;
    if (form === undefined) return;
    if (this.sections.length === 0) {
      this.sections = form.map((group) => this.section(group));
      this.list.append(...this.sections.map(({ root }) => root));
      this.filter();
    }
    for (const { rows, note } of this.sections) {
      rows.forEach(({ field, find, root, setting }) => {
        field.draw();
        find.draw();
        root.toggleAttribute("data-changed", this.isChanged(setting));
      });
      const [changed, wrong] = [rows.filter(({ setting }) => this.isChanged(setting)).length, rows.filter(({ setting }) => this.store.field(setting.name)?.why).length];
      setText(note, [wrong ? words.wrong(wrong) : "", changed ? words.changed(changed) : ""].filter(Boolean).join(texts.separator));
      note.toggleAttribute("data-wrong", wrong > 0);
    }
    this.drawChanged();
    this.drawSchedule();
  }

  private drawSchedule(): void {
    const { line = [], words = "" } = this.store.state.schedule ?? {};
    this.schedule.hidden = line.length === 0;
    this.schedule.replaceChildren(...(line.length ? [spark(line, []), el("span", "", words)] : []));
  }

  /** Each differing setting is a button that leads to it, with one beside it that sets the default. */
  private drawChanged(): void {
    const rows = this.sections.flatMap((section) => section.rows).filter(({ setting }) => this.isChanged(setting));
    const now = JSON.stringify(rows.map(({ setting }) => [setting.name, this.words(setting)]));
    if (now === this.told) return;
    this.told = now;
    this.changed.hidden = rows.length === 0;
    this.changed.replaceChildren(el("span", "", words.differs), ...rows.map((row) => {
      const { setting } = row;
      const chip = el("span", "wb-form-chip");
      const go = el("button", "wb-tool", `${setting.name} = ${this.words(setting)}`, { type: "button", title: words.goTo(setting.name) });
      const reset = el("button", "wb-tool", "✕", { type: "button", title: words.reset(setting.name, setting.default_words), "aria-label": words.reset(setting.name, setting.default_words) });
      go.addEventListener("click", () => this.goTo(row));
      reset.addEventListener("click", () => this.store.request("enter", { name: setting.name, value: setting.default }));
      chip.append(go, reset);
      return chip;
    }));
  }

  private goTo({ field, root }: Row): void {
    this.search.value = "";
    this.filter();
    const section = this.sections.find(({ root: around }) => around.contains(root))!;
    this.keep([...new Set([...this.open, section.group])]);
    section.root.open = true;
    field.control.focus();
    root.scrollIntoView({ block: "nearest" });
  }

  private section({ group, title, settings }: FormGroup): Section {
    const root = el("details", "wb-form-group");
    const [summary, note, grid] = [el("summary", "", title), el("span", "wb-form-note"), el("div", "wb-form-grid")];
    const rows = settings.map((setting) => this.row(setting));
    summary.append(note);
    grid.append(...rows.map((row) => row.root));
    root.append(summary, grid);
    summary.addEventListener("click", (event) => {
      event.preventDefault(); // a search opens sections without changing which ones stay open
      const rest = this.open.filter((name) => name !== group);
      this.keep(root.open ? rest : [...rest, group]);
      root.open = this.open.includes(group);
    });
    return { group, root, note, rows };
  }

  private row(setting: FormSetting): Row {
    const help = el("div", "wb-form-help", setting.help, { id: `wb-help-${(helps += 1)}` });
    const field = new Field(this.store, setting.name, { options: setting.options, describedBy: help.id });
    field.placeholder = setting.placeholder;
    const find = new PanelButton(this.store, `find_${setting.name}`);
    const root = el("div", "wb-form-row");
    const [line, name] = [el("div", "wb-form-line"), el("span", "wb-form-name")];
    name.append(el("label", "", setting.name, { for: field.control.id }));
    if (setting.unit) name.append(" ", el("small", "", setting.unit));
    line.append(name, field.control, find.root);
    root.append(line, field.why, help);
    if (setting.name === "lr_schedule") root.append(this.schedule);
    return { setting, root, field, find };
  }

  /** Show the settings that have all words of the search in their name, help, unit or group. */
  private filter(): void {
    const wanted = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let any = false;
    for (const { group, root, rows } of this.sections) {
      let here = false;
      for (const { setting, root: row } of rows) {
        const text = `${setting.name} ${setting.name.replaceAll("_", " ")} ${setting.help} ${setting.unit} ${group}`.toLowerCase();
        row.hidden = !wanted.every((word) => text.includes(word));
        here ||= !row.hidden;
      }
      root.hidden = !here;
      root.open = wanted.length > 0 || this.open.includes(group);
      any ||= here;
    }
    this.none.hidden = any;
  }

  /** Another view of the panel may have opened or closed a group. */
  follow(): void {
    this.filter();
  }

  private get open(): string[] {
    return this.store.viewOption<string[]>("form.open", []);
  }

  private keep(open: string[]): void {
    this.store.setViewOption("form.open", open);
    this.filter();
  }

  private isChanged({ name }: FormSetting): boolean {
    return this.store.field(name)?.changed === true;
  }

  private words({ name }: FormSetting): string {
    const shown = this.store.field(name)?.shown ?? "";
    return typeof shown === "boolean" ? (shown ? words.yes : words.no) : shown;
  }
}
