// Says a run's state in words.

import { stateOf } from "../messages";
import type { Row } from "../messages";
import type { Texts } from "../texts";

const SHAPES: Record<string, string> = { queued: "○", running: "▶", paused: "❚❚", finished: "✓", stopped: "■", failed: "✕" };

/** The name that a person gave, or the id. */
export function nameOf(row: Row): string {
  return row.name || row.run;
}

/** A sign for the status, so that it need not be told by its colour. */
export function shapeOf(row: Row): string {
  return row.trouble ? "!" : SHAPES[stateOf(row)] ?? "○";
}

/** The status in words; one that cannot be seen from here ends with a question mark. */
export function statusOf(row: Pick<Row, "status">, texts: Texts): string {
  const state = stateOf(row);
  return (texts.status[state] ?? state) + row.status.slice(state.length);
}

/** How far it is, and how long it still takes; of one that is over, how long it ran. */
export function progressOf(row: Row, texts: Texts): string {
  if (!["running", "paused"].includes(stateOf(row))) return row.time;
  const far = row.progress === null ? texts.updates(row.step) : texts.percent(row.progress);
  return row.left ? `${far} · ${texts.left(row.left)}` : far;
}

/** When it began: today the time, otherwise the day, too. */
export function whenOf(row: Pick<Row, "created">, now = new Date()): string {
  if (!row.created) return "";
  const at = new Date(1000 * row.created);
  const time = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  if (at.toDateString() === now.toDateString()) return time;
  return `${at.toLocaleDateString([], { day: "numeric", month: "short" })} ${time}`;
}

/** Newest first; one that only may run, since nobody can see its process from here, does not count. */
export function trainingNow(live: Iterable<Row>): Row[] {
  return [...live].filter(({ status }) => !status.endsWith("?")).sort((a, b) => b.created - a.created);
}

/** A run in one line. */
export function lineOf(row: Row, texts: Texts): string {
  const state = row.status === "running" ? "" : statusOf(row, texts);
  return [nameOf(row), state, progressOf(row, texts)].filter(Boolean).join(" · ");
}
