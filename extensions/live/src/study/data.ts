// What Python sends of a study (workbench/ui/canvas/study/described.py), the trial that is selected, and lines of code.

import { rate } from "../shared/format";
import type { Store } from "../data/store";
import type { StudyAxis, StudyCurve, StudyHead, StudyNow, StudyTrial } from "../data/messages";

/** The trial that a person has selected: all parts of the view mark it. */
export class Selection {
  trial: number | null = null;
  private readonly listeners: (() => void)[] = [];

  listen(listener: () => void): void {
    this.listeners.push(listener);
  }

  /** Select a trial; the one that is selected, or null: none. */
  choose(trial: number | null): void {
    this.trial = trial === this.trial ? null : trial;
    this.listeners.forEach((listener) => listener());
  }
}

/** The study as its view draws it. */
export class StudyData {
  constructor(private readonly store: Store) {}

  get head(): StudyHead | undefined {
    return this.store.state.study ?? undefined;
  }

  get now(): StudyNow | undefined {
    return this.store.state.study_now;
  }

  get axes(): StudyAxis[] {
    return this.store.state.study_space ?? [];
  }

  /** Those that have arrived, by number. */
  get trials(): StudyTrial[] {
    return this.all<StudyTrial>("study_trial");
  }

  get curves(): (StudyCurve & { number: number })[] {
    return (this.head?.trials ?? []).flatMap((number) => {
      const curve = this.one<StudyCurve>("study_curve", number);
      return curve ? [{ ...curve, number }] : [];
    });
  }

  /** Orders values, the better one first. */
  better(a: number, b: number): number {
    return this.head?.mode === "max" ? b - a : a - b;
  }

  private all<T extends { of: string }>(key: string): T[] {
    return (this.head?.trials ?? []).flatMap((number) => this.one<T>(key, number) ?? []);
  }

  /** Another study in the same place may have left one of this number. */
  private one<T extends { of: string }>(key: string, number: number): T | undefined {
    const value = (this.store.state as Record<string, unknown>)[`${key}.${number}`] as T | undefined;
    return value?.of === this.head?.id ? value : undefined;
  }
}

/** A number as Python has it; those of a range of parts have a point or a power. */
export function literal(value: number, whole: boolean): string {
  if (whole) return String(Math.round(value));
  const text = rate(Number(value.toPrecision(2)));
  return /^-?\d+$/.test(text) ? `${text}.0` : text;
}

const LITERAL = /^([-+]?[\d.][\d._]*(e[-+]?\d+)?|None|True|False|["'[({].*)$/i;

/** What a person has typed for a value, as Python has it: a word is a text. */
export function typed(text: string): string {
  const value = text.trim();
  return LITERAL.test(value) ? value : JSON.stringify(value);
}

/** A button that carries out the line of code that `code` gives; the line is its tooltip. */
export function carriesOut(store: Store, button: HTMLButtonElement, code: () => string): HTMLButtonElement {
  button.addEventListener("click", () => {
    if (button.getAttribute("aria-disabled") !== "true") store.request("study", { code: code() });
  });
  return button;
}
