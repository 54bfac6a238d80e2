// Which runs a command is for.

import assert from "node:assert/strict";
import test from "node:test";
import type { Widget } from "@lumino/widgets";
import type { Ref } from "../src/messages";
import { RunsInUse } from "../src/runs/in-use";

/** A place as RunsInUse knows it: it can be used, hidden and closed. */
function place(inUse: RunsInUse, ...runs: string[]) {
  const node = new EventTarget();
  const closed: (() => void)[] = [];
  const widget = { node, isVisible: true, disposed: { connect: (slot: () => void) => closed.push(slot) } };
  const refs: Ref[] = runs.map((run) => ({ root: "a1b2", run }));
  inUse.add(widget as unknown as Widget, () => refs);
  return { refs, use: () => node.dispatchEvent(new Event("focusin")), show: (on: boolean) => void (widget.isVisible = on), close: () => closed.forEach((slot) => slot()) };
}

const ids = (refs: Ref[]) => refs.map(({ run }) => run);

test("the runs of the arguments come first, and those that are no runs are none", () => {
  const inUse = new RunsInUse();
  place(inUse, "0009-fit").use();
  assert.deepEqual(inUse.of({ root: "a1b2", run: "0001-fit", activate: false }), [{ root: "a1b2", run: "0001-fit" }]);
  assert.deepEqual(ids(inUse.of({ runs: [{ root: "a1b2", run: "0001-fit" }, { root: "c3d4", run: "0002-fit" }] })), ["0001-fit", "0002-fit"]);
  assert.deepEqual(inUse.of({ run: "0001-fit" }), []);
  assert.deepEqual(inUse.of({ runs: [] }), []);
  assert.deepEqual(ids(inUse.of({})), ["0009-fit"]);
});

test("without arguments: the place that was used last, as long as it can be seen", () => {
  const inUse = new RunsInUse();
  const panel = place(inUse, "0001-fit", "0002-fit");
  const pane = place(inUse, "0003-fit");
  assert.deepEqual(inUse.of({}), []); // nobody has chosen between them
  panel.use();
  assert.deepEqual(ids(inUse.of({})), ["0001-fit", "0002-fit"]);
  pane.use();
  assert.deepEqual(ids(inUse.of({})), ["0003-fit"]);
  panel.use();
  panel.show(false); // its selection is out of sight
  assert.deepEqual(ids(inUse.of({})), ["0003-fit"]);
  panel.show(true);
  panel.refs.length = 0;
  assert.deepEqual(inUse.of({}), []); // not those of another place
  panel.close();
  assert.deepEqual(ids(inUse.of({})), ["0003-fit"]);
});

test("a pane that was shown and not used counts where there is no other", () => {
  const inUse = new RunsInUse();
  const panel = place(inUse);
  const pane = place(inUse, "0003-fit");
  assert.deepEqual(ids(inUse.of({})), ["0003-fit"]);
  panel.refs.push({ root: "a1b2", run: "0001-fit" });
  assert.deepEqual(inUse.of({}), []);
  pane.show(false);
  assert.deepEqual(ids(inUse.of({})), ["0001-fit"]);
});
