// The types of what Python sends (workbench/ui/canvas/transport/messages.py): small values by name, and rows of float32.

export interface Part {
  channel: string;
  generation: number;
  start: number;
  rows: number;
  columns: number;
  more: boolean;
  origin?: number;
  width?: number;
  every?: number;
  view?: number;
}

export interface Suggestion {
  name: string;
  lr: number | null; // null: this rule found none, and why
  why: string;
}

/** A parameter group: its rate as a multiple of the setting. */
export interface Group {
  name: string;
  ratio: number;
}

/** What the curve is of; of an optimizer that was not swept yet only its number. */
export interface Swept {
  optimizer: number;
  run?: string;
  low?: number | null;
  high?: number | null;
  groups?: Group[];
  whose?: string;
}

export interface Curve {
  suggestion: number | null;
  diverged: number | null;
  ended: string;
  notes: string[];
  doubts: string[];
  suggestions: Suggestion[];
}

export interface Sized {
  size: number;
  batches: number | null; // so many make the samples of an update, where these are kept
}

export interface Trial extends Sized {
  state: "fits" | "memory" | "error";
  rate: number | null;
  rate_words: string;
  /** Half the width of the speed's 95% interval, as a share of it. */
  rate_within: number | null;
  peak: number | null;
  peak_words: string;
  error: string | null;
  /** How many an epoch has; null where nobody knows. */
  updates: number | null;
}

/** A metric of the user's. `judges`: checkpoints can be judged by it; `mode`: what is better, null where nobody knows. */
export interface Metric {
  name: string;
  mode: "min" | "max" | null;
  judges: boolean;
  last: string;
  best: string;
  at: number | null;
}

export interface Progress {
  status: "queued" | "running" | "paused" | "finished" | "stopped" | "failed";
  doing: string;
  kind: string;
  run: string;
  done: number;
  total: number | null;
  /** How the fit stands and how long the job still takes. */
  headline: string;
  words: string[];
  values: [string, string][];
  ended: string;
}

/** A row of the heat map: its name, its first layer, and the one after its last. */
export type Row = [name: string, first: number, end: number];

/** A row that has a line: which stroke, its last value (the largest of a module), and its share of the total. */
export interface Pick {
  stroke: number;
  name: string;
  first: number;
  end: number;
  value: number | null;
  share: number | null;
}

/** A fit in the table of runs, in the words of workbench/ui/canvas/runs/runs_page.py. */
export interface RunRow {
  run: string;
  status: string;
  from: string;
  /** Its place in a study, or "". */
  study: string;
  metric: string;
  /** Texts in the order of the columns. */
  cells: string[];
  step: number;
  created: number;
  spark: number[];
  dots: [number, number][];
  /** Why its result is in doubt: the level of that finding, and a word or two. */
  trouble?: [string, string] | null;
  name: string;
  tags: string[];
  pinned: boolean;
  noted: boolean; // its notes lie in "notes." and its id
}

/** The runs with one value of a column: how many, and the mean and range of each column with numbers. `filter`: shows them, "": none can. */
export interface RunGroup {
  value: string;
  filter: string;
  count: number;
  cells: string[];
}

/** The table of runs as it is seen; its rows lie in "rows.0", "rows.1", … */
export interface RunsHead {
  of: number;
  parts: number;
  columns: string[];
  numeric: boolean[];
  offered: string[];
  /** Whether nobody has chosen the columns. */
  automatic: boolean;
  filter: string;
  /** The mistake in the filter; "": it has none. */
  problem: string;
  /** Which of its values no run has; "": each has a run, or is no text. */
  hint: string;
  sort: string;
  down: boolean;
  /** The number of the first row, of so many that match, of so many that are known. `waiting`: so many are being read; `unread`: older ones are not. */
  start: number;
  matching: number;
  known: number;
  waiting: number;
  unread: number;
  groupable: string[];
  group: string;
  groups: RunGroup[] | null;
  explain: boolean;
}

/** Settings of runs against their results. A place on an axis is from 0 to 999, null: the run has none; the last axis is the result. */
export interface Explained {
  metric: string;
  mode: "min" | "max";
  least: number;
  all: number;
  axes: { name: string; choices: boolean; ends: string[] }[];
  runs: { run: string; at: (number | null)[] }[];
  shares: { name: string; share: number; low: number; high: number }[];
}

/** Runs that are deleted unless that is undone; due: it is too late to. */
export interface Deletion {
  number: number;
  runs: string[];
  due: boolean;
}

export interface Finding {
  level: "error" | "warning" | "info";
  text: string;
  advice: string;
  /** A line of code on `bench` that does it; "" where no single line does. */
  remedy: string;
  /** Why the result of the run is in doubt, in a word or two; "": it is not. */
  trouble: string;
}

/** What a search recommends. `of`: what it is of; `text`: its value ("": there is none); `sets`: the settings that apply it ("": there are none). */
export interface Answer {
  kind: string;
  of: string;
  text: string;
  why: string;
  sets: string;
  used: boolean;
}

/** A job of the bench. `show`: the run that shows it, "": the live one is it; null: it cannot be shown. `curve`: the kind of plot over which its curve can be laid, or "". `restores`: its settings that others have replaced. */
export interface Chip {
  run: string;
  status: Progress["status"];
  /** Why its result is in doubt: the level of that finding, and a word or two. */
  trouble: [string, string] | null;
  label: string;
  note: string;
  show: string | null;
  curve: string;
  restores: string;
  /** Whether it is a study. */
  study?: boolean;
}

/** The error that ended a job. */
export interface Failed {
  title: string;
  type: string;
  message: string;
  /** The last line of the user's own code that it passed. */
  where: string;
  /** Where memory ran out: what to do, and the lines of code that do it. */
  advice: string;
  remedies: string[];
  traceback: string;
}

/** A button of the panel. `off`: a click has no effect now; `pressed`: of one that stays pressed. */
export interface ButtonState {
  text: string;
  tooltip: string;
  off: boolean;
  disabled: boolean;
  visible: boolean;
  pressed?: boolean;
}

/** What the control of a setting shows. `why`: why it was refused; `changed`: whether the setting differs from its default. */
export interface FieldState {
  shown: string | boolean;
  why: string;
  changed: boolean;
}

/** What stands beside the boxes of the four steps; placeholders and help by setting. */
export interface Steps {
  each: string;
  placeholders: Record<string, string>;
  help: Record<string, string>;
  optimizers: number;
  optimizer: number;
}

export interface FormSetting {
  name: string;
  help: string;
  unit: string;
  options: string[];
  placeholder: string;
  /** What is entered to have the default again, and the default in words. */
  default: string | boolean;
  default_words: string;
}

export interface FormGroup {
  group: string;
  title: string;
  settings: FormSetting[];
}

export interface NoticeLine {
  number: number;
  level: "info" | "warning" | "error";
  text: string;
  /** The texts of its buttons. */
  offers: string[];
}

/** What a study is, and how it stands: workbench/ui/canvas/study/described.py. */
export interface StudyHead {
  id: string;
  monitor: string;
  mode: "min" | "max";
  /** Lengths at which trials are compared, as shares of a whole fit, and the updates at which they halt; null: none has yet. */
  rungs: number[];
  places: (number | null)[];
  /** The columns of values. */
  names: string[];
  trials: number[];
  more: number;
  best: number | null;
  best_value: number | null;
  baseline: number | null;
  baseline_value: number | null;
  noise: number | null;
  repeats: number;
  verdict: string;
  adopt: boolean | null;
  seeds: number;
  /** The methods of the study for which there are buttons. */
  calls: string[];
}

/** What changes while nothing ends. */
export interface StudyNow {
  of: string;
  status: "running" | "paused" | "ended" | "ending" | "no worker";
  unit: "fits" | "seconds";
  budget: number;
  spent: number;
  fits: number;
  by_hand: number;
  elapsed: number;
  left: number | null;
  workers: number;
  paused: boolean;
}

/** One dimension of the space. `codes`: the values of a choice as Python has them. */
export interface StudyAxis {
  name: string;
  relative: boolean;
  edits: boolean;
  log: boolean;
  low: number | null;
  high: number | null;
  whole: boolean;
  choices: string[];
  codes: string[];
}

export interface StudyTrial {
  of: string;
  number: number;
  from: string;
  why: string;
  values: string[];
  at: (number | null)[];
  share: number;
  value: number | null;
  spent: number;
  fresh: number[];
  state: string;
  seed: number;
  infeasible: boolean;
  whole: boolean;
  cause: string;
  run: string;
  cost: number;
  seconds: number;
}

/** `ends`: where it was compared. */
export interface StudyCurve {
  of: string;
  x: number[];
  y: (number | null)[];
  ends: [step: number, value: number | null][];
}

export interface State {
  study?: StudyHead | null;
  study_now?: StudyNow;
  study_words?: { text: string; code: string; runs: boolean }[];
  study_space?: StudyAxis[];
  study_importance?: { name: string; low: number; share: number; high: number }[];
  title?: [name: string, facts: string];
  buttons?: Record<string, ButtonState>;
  steps?: Steps;
  form?: FormGroup[];
  /** The built-in schedule: heights from 0 to 99, and what the drawing is of. */
  schedule?: { line: number[]; words: string };
  notices?: NoticeLine[];
  frozen?: boolean; // nothing of the followed job can be changed
  writing?: string; // where the script is about to be written; "": nowhere
  followed?: boolean; // one job of another process: cards of what it is not are left out
  runs?: RunsHead;
  explained?: Explained | null;
  moving?: Partial<RunRow>[]; // the present values of runs that run
  ended?: Record<string, string>; // by run, why it cannot be continued
  unkept?: Record<string, string>; // by run, why it cannot be repeated
  deleting?: Deletion[];
  past?: { run: string; words: string }[];
  compared?: { view: number; runs: string[]; over: boolean[]; rows: string[][]; metrics: string[] } | null;
  compared_marks?: [which: number, step: number, text: string][];
  opened?: { run: string } | null;
  queue?: { job: string; words: string; why: string }[]; // the jobs that wait for the running one to end
  rates?: string[];
  health?: Finding[] | null;
  failure?: Failed | null;
  /** The share of the time by part, the largest first. */
  time?: { title: string; shares: [string, number][] } | null;
  map?: { shown: "norm" | "ratio"; view: number; rows: Row[]; path: Row[]; merged: number };
  picks?: Pick[];
  /** Where a loss or a gradient was first not finite; `place`: the layer, where one is known. */
  broken?: { step: number; place: number | null; words: string } | null;
  /** Whether update ratios are measured, and where there are none, why. */
  ratios?: { on: boolean; words: string };
  changes?: [number, string][];
  clips?: [number, number | null][];
  norm?: { caption: string; by_norm: boolean; lined: boolean; suggested: number | null };
  metrics?: { monitor: string | null; metrics: Metric[] };
  val?: { name: string; averaged: string };
  curve?: Curve | null;
  swept?: Swept;
  /** The rates that trained for a while after the sweep, with their held-out losses. */
  raced?: { lr: number; loss: number | null }[];
  earlier_curves?: { run: string; suggestion: number | null }[];
  trials?: Trial[];
  trying?: Sized | null;
  room?: { bytes: number; words: string } | null;
  chosen?: Sized;
  search?: { best: number | null; fastest: number | null; largest: number | null; reason: string; noise: number | null; noise_reason: string; ended: string } | null;
  progress?: Progress | null; // null: nothing has run, or nothing of what is shown
  said?: string;
  /** The kind of job that the stage shows. */
  stage?: string;
  answers?: Answer[];
  timeline?: Chip[];
  /** The curve of the job whose chip was pointed at last: of a fit updates, epochs, seconds, loss; of a sweep rates and losses. */
  overlay?: { run: string; value: string; rows: (number | null)[][] };
  code?: string;
  memory?: { used: number; of: number | null; words: string } | null;
  /** Which of `count` validations is shown; its content lies in "sample.0", "sample.1", … */
  samples?: { count: number; place: number; step: number; epoch: number; of: number; parts: number } | null;
  histograms?: { step: number; rows: LayerBars[]; note: string } | null;
  still?: boolean; // a file without a kernel: nothing can be asked for
  script?: ScriptHead | null; // its text lies in "script.0", "script.1", …
}

/** `options`: those that the script has; `refused`: why it cannot have others, by name. */
export interface ScriptHead {
  run: string;
  format: string;
  of: number;
  parts: number;
  lines: number;
  options: string[];
  refused: Record<string, string>;
}

/** A part of a long text (a script, samples); `of`: which showing it is of. */
export interface TextPart {
  of: number;
  text: string;
}

/** A histogram: heights from 0 to 99 of equally wide bins, and its range in words; `bad`: how many values were not finite. */
export interface Bars {
  heights: number[];
  low: string;
  high: string;
  bad: number;
}

/** A layer that was measured. `function`: the activation function that its activations come from, or "". */
export interface LayerBars {
  name: string;
  weights: Bars;
  activations: Bars | null;
  function: string;
  dead: number | null;
  saturated: number | null;
}

/** What one function of bench.watch returned. `why`: why there is nothing to show. */
export interface SampleSet {
  name: string;
  items: { label: string; note: string; text: string; png?: string }[];
  left_out: number;
  why: string;
}

export interface Draw {
  type: "draw";
  state: State;
  parts: Part[];
}

export function isDraw(message: unknown): message is Draw {
  return typeof message === "object" && message !== null && (message as { type?: unknown }).type === "draw";
}
