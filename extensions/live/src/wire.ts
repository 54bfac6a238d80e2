// What Python sends (workbench/ui/wire.py and the files that fill it): small values by name, and rows of float32.

export interface Part {
  channel: string;
  generation: number;
  start: number;
  rows: number;
  columns: number;
  more: boolean;
  origin?: number;
  width?: number;
}

export interface Suggestion {
  name: string;
  lr: number;
  why: string;
}

export interface Curve {
  suggestion: number | null;
  ended: string;
  notes: string[];
  suggestions: Suggestion[];
}

export interface Trial {
  size: number;
  ok: boolean;
  rate: number | null;
  rate_words: string;
  peak: number | null;
  peak_words: string;
  error: string | null;
}

export interface Progress {
  status: "queued" | "running" | "paused" | "finished" | "stopped" | "failed";
  doing: string;
  done: number;
  total: number | null;
  words: string[];
  values: [string, string][];
  ended: string;
}

export interface State {
  layers?: string[];
  changes?: [number, string][];
  clips?: [number, number | null][];
  norm?: { caption: string; by_norm: boolean };
  val?: { name: string; averaged: string };
  curve?: Curve | null;
  trials?: Trial[];
  search?: { best: number | null; largest: number | null; ended: string } | null;
  progress?: Progress;
  said?: string;
  code?: string;
}

export interface Draw {
  type: "draw";
  state: State;
  parts: Part[];
}

export function isDraw(message: unknown): message is Draw {
  return typeof message === "object" && message !== null && (message as { type?: unknown }).type === "draw";
}
