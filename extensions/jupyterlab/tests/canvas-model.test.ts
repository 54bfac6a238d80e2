// The canvas's model over a websocket, with the notebook's own store of the canvas at its end.

import assert from "node:assert/strict";
import test from "node:test";
import { Store } from "../../live/src/data/store";
import type { Hears } from "../src/connection";
import { CanvasModel, canvasPath, readFrame } from "../src/run/canvas-model";

/** A frame as the server sends it. */
function frame(state: object, parts: object[] = [], rows: Float32Array[] = []): ArrayBuffer {
  const text = new TextEncoder().encode(JSON.stringify({ type: "draw", state, parts, sizes: rows.map((one) => one.byteLength) }));
  const bytes = [new Uint8Array(new Uint32Array([text.length]).buffer), text, ...rows.map((one) => new Uint8Array(one.buffer))];
  const whole = new Uint8Array(bytes.reduce((sum, part) => sum + part.length, 0));
  bytes.reduce((at, part) => (whole.set(part, at), at + part.length), 0);
  return whole.buffer;
}

/** A model on a connection that the test opens and loses. */
function connected() {
  const sent: unknown[] = [];
  let hears!: Hears;
  let open = false, closed = false;
  const kept = { looks: {} as Record<string, unknown> };
  const looks = { read: () => kept.looks, write: (changed: Record<string, unknown>) => { kept.looks = changed; } };
  const model = new CanvasModel((given) => {
    hears = given;
    return { send: (text) => { if (open) sent.push(JSON.parse(text)); }, retry: () => {}, dispose: () => { closed = true; } };
  }, looks);
  const server = {
    open: () => { open = true; hears.opened(); },
    lose: () => { open = false; hears.lost(); },
    say: (data: ArrayBuffer | string) => hears.heard(data),
  };
  return { model, sent, kept, server, closed: () => closed };
}

const part = (start: number, generation = 1) => ({ channel: "val", generation, start, rows: 2, columns: 3, more: false });

test("rows reach the store, whatever the length of the JSON before them", () => {
  const { model, server } = connected();
  const store = new Store(model);
  for (const name of ["a", "ab", "abc", "abcd"]) server.say(frame({ code: name }, [part(0)], [Float32Array.of(1, 2, 3, 4, 5, 6)]));
  assert.equal(store.state.code, "abcd");
  assert.deepEqual([store.val.rows.count, store.val.rows.at(1, 2)], [2, 6]);
  assert.equal(readFrame(frame({}, [], [])).buffers.length, 0);
  assert.throws(() => readFrame(frame({}, [part(0)], [Float32Array.of(1)]).slice(0, -2)));
});

test("everything is asked for whenever the connection opens, and drawn over what was there", () => {
  const { model, sent, server } = connected();
  const links: boolean[] = [];
  model.onConnected = (link) => links.push(link);
  const store = new Store(model); // asks at once, before the connection is there: that is dropped
  assert.deepEqual(sent, []);
  server.open();
  assert.deepEqual(sent, [{ type: "ready" }]);
  server.say(frame({}, [part(0)], [Float32Array.of(1, 2, 3, 4, 5, 6)]));
  server.lose();
  store.request("use_clip", { value: 1 });
  server.open();
  assert.deepEqual(sent, [{ type: "ready" }, { type: "ready" }]);
  server.say(frame({}, [{ ...part(0), rows: 1 }], [Float32Array.of(7, 8, 9)])); // the new canvas counts its generations from the start, too
  assert.deepEqual([store.val.rows.count, store.val.rows.at(0, 0)], [1, 7]);
  store.request("use_clip", { value: 2 });
  assert.deepEqual(sent.at(-1), { type: "ask", what: "use_clip", value: 2 });
  assert.deepEqual(links, [true, false, true]);
});

test("switches are kept, lines that a followed run does not have are off", () => {
  const { model, kept, closed } = connected();
  const store = new Store(model);
  assert.equal(store.viewOption("loss.log", false), false);
  store.setViewOption("loss.log", true);
  store.setViewOption("smooth", 3);
  assert.deepEqual(kept.looks, { "loss.log": true, smooth: 3 });
  assert.deepEqual([model.get("marker"), model.get("clip")], [0, 0]);
  let moved = 0;
  const hear = () => { moved += 1; };
  model.on("change:clip", hear);
  model.set("clip", 2);
  model.off("change:clip", hear);
  model.set("clip", 3);
  assert.equal(moved, 1);
  model.dispose();
  assert.ok(closed());
});

test("a refusal is told, and draws nothing", () => {
  const { model, server } = connected();
  const store = new Store(model);
  const refused: string[] = [];
  model.onRefused = (why) => refused.push(why);
  server.say(JSON.stringify({ type: "refused", text: "0003-fit has ended." }));
  server.say(JSON.stringify({ type: "what a later version says" }));
  assert.deepEqual(refused, ["0003-fit has ended."]);
  assert.deepEqual(store.state, {});
});

test("the address of one run and of several", () => {
  const [one, two] = [{ root: "a1", run: "0001-fit" }, { root: "b2", run: "0002-fit" }];
  assert.equal(canvasPath([one]), "api/canvas?root=a1&run=0001-fit");
  assert.deepEqual(new URLSearchParams(canvasPath([one, two]).split("?")[1]).getAll("compare"), ["a1/0001-fit", "b2/0002-fit"]);
});
