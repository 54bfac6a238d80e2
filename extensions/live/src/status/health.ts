// Shows what Health found in a run, right below its status: each finding with what to do.

import { el, setText } from "../shared/dom";
import { Failure } from "./failure";
import type { Store } from "../data/store";
import type { Finding } from "../data/messages";
import { texts } from "../texts";

const { health: words } = texts;
const LIVE = ["queued", "running", "paused"];

export class Health {
  readonly root = el("section", "wb-health", "", { "aria-label": words.label });
  private readonly list = el("ul", "wb-findings", "", { "aria-live": "polite", "aria-relevant": "additions" });
  private readonly well = el("li", "wb-well", words.none);
  private readonly failure: Failure;
  private lines = new Map<string, Line>();

  constructor(private readonly store: Store) {
    this.failure = new Failure(store);
    this.root.append(this.failure.root, this.list);
  }

  draw(): void {
    const { health, failure } = this.store.state;
    this.failure.draw();
    const told = health ?? [];
    if (health?.length === 0 && !failure) this.list.append(this.well);
    else this.well.remove();
    const before = this.lines;
    this.lines = new Map();
    for (const finding of told) {
      let about = key(finding);
      while (this.lines.has(about)) about += " again";
      const line = before.get(about) ?? new Line(this.store);
      line.show(finding);
      this.lines.set(about, line);
    }
    for (const [about, line] of before) if (!this.lines.has(about)) line.root.remove();
    [...this.lines.values()].forEach(({ root }, i) => {
      if (this.list.children[i] !== root) this.list.insertBefore(root, this.list.children[i] ?? null); // with all its text: it is announced now
    });
  }
}

/** The finding that puts the result of the current fit in doubt; null: none does, or another job is shown. */
export function trouble(store: Store): Finding | null {
  if (store.state.progress?.kind !== "fit") return null;
  return (store.state.health ?? []).find((finding) => finding.trouble) ?? null;
}

/** What a finding is of, whatever its numbers are by now and wherever among the others it stands. */
function key({ level, text }: Finding): string {
  return `${level} ${text.replace(/\d+/g, "")}`;
}

/** A finding. Its line stays while its numbers change: a screen reader announces new lines only. */
class Line {
  readonly root = el("li");
  private readonly kind = el("b");
  private readonly text = el("span");
  private readonly advice = el("span", "wb-advice");
  private readonly remedy = el("button", "wb-tool wb-fix", "", { type: "button" });
  private finding: Finding | null = null;

  constructor(private readonly store: Store) {
    const sentences = el("span", "wb-finding-text");
    sentences.append(this.text, " ", this.advice);
    this.root.append(this.kind, sentences, this.remedy);
    this.remedy.addEventListener("click", () => store.request("remedy", { code: this.finding?.remedy ?? "", stop: this.stops() }));
  }

  show(finding: Finding): void {
    const { level, text, advice, remedy } = this.finding = finding;
    this.root.className = `wb-finding wb-finding-${level}`;
    setText(this.kind, words.levels[level]);
    setText(this.text, sentence(text));
    setText(this.advice, advice ? sentence(advice) : "");
    this.remedy.hidden = !remedy || this.store.state.followed === true;
    this.remedy.title = remedy;
    const search = searchOf(remedy);
    const set = /^bench\.set\((.*)\)$/.exec(remedy)?.[1];
    setText(this.remedy, search ? (this.stops() ? words.stopAndSearch(search) : capital(search)) : set ? words.set(set) : remedy);
  }

  /** Whether the remedy is a search, which would wait for the end of the fit that runs. */
  private stops(): boolean {
    const { progress } = this.store.state;
    return searchOf(this.finding?.remedy ?? "") !== undefined && progress?.kind === "fit" && LIVE.includes(progress.status);
  }
}

/** The search that a remedy starts, in words; undefined: it starts none. */
function searchOf(remedy: string): string | undefined {
  return words.searches[remedy.replace(/\(.*\)$/, "()")];
}

function capital(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** With a capital, unless it begins with code, and a full stop. */
function sentence(text: string): string {
  const said = /^\w+[(=]/.test(text) ? text : capital(text);
  return /[.?!]$/.test(said) ? said : `${said}.`;
}
