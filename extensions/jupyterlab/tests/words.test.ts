import assert from "node:assert/strict";
import { test } from "node:test";
import { nullTranslator } from "@jupyterlab/translation";
import { readEvent } from "../src/messages";
import { freeName } from "../src/launcher/names";
import { changesOf, tagsIn } from "../../live/src/shared/edited";
import { lineOf, nameOf, progressOf, shapeOf, statusOf, trainingNow, whenOf } from "../src/runs/words";
import { DOMAIN, textsOf } from "../src/texts";
import { row } from "./rows";

const texts = textsOf(nullTranslator.load(DOMAIN));
const running = row("0007-fit", { status: "running", progress: 0.4299, left: "2 min", step: 43, time: "1 min" });

test("a run is named as a person named it", () => {
  assert.deepEqual([nameOf(running), nameOf({ ...running, name: "wide net" })], ["0007-fit", "wide net"]);
});

test("a status that cannot be seen from here has a question mark, and one that is new is shown as it came", () => {
  assert.deepEqual(["running", "running?", "waiting"].map((status) => statusOf({ ...running, status }, texts)), ["running", "running?", "waiting"]);
});

test("a doubt about the result is seen before the status", () => {
  assert.deepEqual([shapeOf(row("x")), shapeOf(row("x", { trouble: ["error", "diverged"] }))], ["✓", "!"]);
});

test("how far it is: a share and the time left, or the updates where nobody knows how many there will be", () => {
  assert.equal(progressOf(running, texts), "42% · 2 min left");
  assert.equal(progressOf({ ...running, left: "" }, texts), "42%");
  assert.equal(progressOf({ ...running, progress: null, left: "" }, texts), "43 updates");
  assert.equal(progressOf({ ...running, progress: null, left: "", step: 1 }, texts), "1 update");
  assert.equal(progressOf({ ...running, status: "finished" }, texts), "1 min");
});

test("when it began: the time of today, and the day of others", () => {
  const at = new Date(2026, 4, 3, 14, 5);
  const begun = row("x", { created: at.getTime() / 1000 });
  assert.match(whenOf(begun, at), /^\D*0?2:05|14:05/);
  assert.match(whenOf(begun, new Date(2026, 4, 4)), /3/);
  assert.equal(whenOf(row("x", { created: 0 })), "");
});

test("what trains now: the newest first, and not what only may run", () => {
  const rows = [row("1", { status: "running", created: 1 }), row("2", { status: "running?", created: 2 }), row("3", { status: "paused", created: 3, progress: 0.5 })];
  assert.deepEqual(trainingNow(rows).map(({ run }) => run), ["3", "1"]);
  assert.equal(lineOf(running, texts), "0007-fit · 42% · 2 min left");
  assert.equal(lineOf(rows[2]!, texts), "3 · paused · 50%");
});

test("tags are separated by commas", () => {
  assert.deepEqual(tagsIn(" sgd, wide net,, "), ["sgd", "wide net"]);
  assert.deepEqual(tagsIn(""), []);
});

test("an event of a later version is left out", () => {
  assert.deepEqual(readEvent('{"type": "list"}'), { type: "list" });
  assert.equal(readEvent('{"type": "weather"}'), null);
});

test("of a form only what was changed is sent", () => {
  const before = { name: "wide net", tags: ["sgd", "baseline"], notes: "" };
  assert.deepEqual(changesOf(before, { ...before, tags: ["sgd", "baseline"] }), {});
  assert.deepEqual(changesOf(before, { ...before, name: "", tags: ["sgd"] }), { name: "", tags: ["sgd"] });
});

test("a new notebook has the name of its template, and never that of a file that is there", () => {
  assert.equal(freeName("own-data", ["other.ipynb"]), "own-data.ipynb");
  assert.equal(freeName("own-data", ["own-data.ipynb", "own-data-1.ipynb", "own-data-3.ipynb"]), "own-data-2.ipynb");
});
