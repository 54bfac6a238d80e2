// The types of what the server sends (workbench/server/), and of what it is asked for.

/** Which run: the key of its root, and its id there. */
export interface Ref {
  root: string;
  run: string;
}

/** Which study: the key of its root, and its id there. */
export interface StudyRef {
  root: string;
  study: string;
}

/** A study in a list, in words to be shown as they are. */
export interface StudyRow extends StudyRef {
  /** "running", "paused", "ended", "no worker" or "unreadable". */
  status: string;
  monitor: string;
  /** The best value so far, or "". */
  best: string;
  trials: number;
  /** What it has spent of its budget. */
  spent: string;
  budget: string;
  /** From 0 to 1. */
  progress: number;
  /** Seconds since 1970. */
  created: number;
  /** Why it cannot be read, or "". */
  error: string;
}

export interface StudyPage {
  studies: StudyRow[];
  /** How many older ones are not listed. */
  more: number;
  /** Not all are read yet: whoever asks again has more. */
  reading: boolean;
}

/** A run in a list, in words to be shown as they are. */
export interface Row extends Ref {
  /** "fit", "find_lr", … */
  kind: string;
  /** "queued", "running", "paused", "finished", "stopped" or "failed"; with a question mark where nobody can see from here. */
  status: string;
  loss: string;
  metric: string;
  /** The best of `metric`. */
  value: string;
  /** What a search found, or "". */
  answer: string;
  step: number;
  /** Updates of the whole run; null where nobody knows. */
  total: number | null;
  /** From 0 to 1; null where nobody knows. */
  progress: number | null;
  /** The time left in words; "" where nobody knows. */
  left: string;
  /** The time that it has run, in words. */
  time: string;
  /** Seconds since 1970. */
  created: number;
  /** The run that it continues, or "". */
  from: string;
  /** Its place in a study, or "". */
  study: string;
  /** What a person gave. */
  name: string;
  tags: string[];
  pinned: boolean;
  notes: string;
  /** Of the four above: a change that is based on them names it. */
  version: string;
  /** Its settings that differ from those of other runs, one for each column of the page. */
  cells: string[];
  spark: number[];
  dots: [number, number][];
  /** Why its result is in doubt: the level of that finding, and a word or two. */
  trouble: [string, string] | null;
  /** Whether it takes commands now. */
  commands: boolean;
  launched: boolean;
  /** What a queued job waits for, or "". */
  waits: string;
  /** The first line of the error that ended it, or "". */
  error: string;
}

export interface Root {
  key: string;
  name: string;
}

/** A part of the list of runs. `matching` and `statuses` count the runs on all pages. */
export interface Page {
  rows: Row[];
  matching: number;
  total: number;
  /** The names of the settings that differ. */
  columns: string[];
  statuses: Record<string, number>;
  tags: string[];
  roots: Root[];
  /** Not all records are read yet: another page follows by itself. */
  reading: boolean;
}

export type SortBy = "created" | "loss" | "value" | "time" | "name" | "status";

/** Which runs to list; "" does not filter. */
export interface Query {
  search: string;
  status: string;
  tag: string;
  root: string;
  sort: SortBy;
  order: "asc" | "desc";
  offset: number;
  limit: number;
}

/** All of one run. */
export interface Details {
  row: Row;
  facts: [label: string, text: string][];
  settings: { name: string; text: string; default: boolean }[];
  /** Settings that were changed while it ran: the update, and what. */
  changes: [step: number, text: string][];
  checkpoints: { name: string; step: number; what: string; bytes: number }[];
  /** Whether it has a file of what it printed. */
  output: boolean;
  why_no_commands: string;
  /** Why it cannot be repeated; "": it can. */
  why_no_rerun: string;
  /** Its record is long, and only its beginning was read for facts and changes: whoever asks again has more. */
  reading: boolean;
  /** Lines of code for a notebook; "" where there is none. */
  code: { settings: string; continue: string; rerun: string };
}

export type CommandType = "Stop" | "Pause" | "Resume" | "Validate" | "Checkpoint" | "Change";

/** What a person adds to a run; what is left out stays. */
export interface Annotations {
  name?: string;
  notes?: string;
  tags?: string[];
  pinned?: boolean;
}

/** A part of what a run printed; `offset`: where the next part begins. */
export interface Output {
  text: string;
  offset: number;
  more: boolean;
}

export interface Template {
  name: string;
  title: string;
  description: string;
}

/** What the server says by itself. */
export type Event =
  | { type: "list" }
  | { type: "rows"; rows: Row[] }
  | { type: "began"; row: Row }
  | { type: "ended"; row: Row };

/** The event in a text of the websocket; null: one that this version does not know. */
export function readEvent(text: string): Event | null {
  const told = JSON.parse(text) as Event;
  return ["list", "rows", "began", "ended"].includes(told.type) ? told : null;
}

/** The status without its question mark. */
export function stateOf(row: Pick<Row, "status">): string {
  return row.status.replace("?", "");
}

/** Whether a run is not over yet. */
export function isLive(row: Row): boolean {
  return ["queued", "running", "paused"].includes(stateOf(row));
}

/** One text for each run, to look it up by. */
export function keyOf({ root, run }: Ref): string {
  return `${root}/${run}`;
}
