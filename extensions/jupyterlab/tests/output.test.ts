// The output of a launched run, as the page reads on in it.

import assert from "node:assert/strict";
import { mock, test } from "node:test";
import { nullTranslator } from "@jupyterlab/translation";
import { ApiError, NoServerError } from "../src/api";
import { OutputText } from "../src/run/output";
import { paneTextsOf } from "../src/run/texts";

/** As much of an element as is used. */
class Node {
  hidden = false;
  textContent = "";
  className = "";
  scrollHeight = 0;
  scrollTop = 0;
  clientHeight = 0;
  append(): void {}
  setAttribute(): void {}
}
(globalThis as { document?: unknown }).document = { createElement: () => new Node() };

function read(answer: () => Promise<{ text: string; offset: number; more: boolean }>) {
  mock.timers.enable({ apis: ["setTimeout"] });
  mock.method(Math, "random", () => 0.5);
  let asked = 0;
  const api = { output: () => { asked += 1; return answer(); } };
  const output = new OutputText(api, { root: "a1b2", run: "0001-fit" }, paneTextsOf(nullTranslator.load("")));
  const shown = output as unknown as { trouble: Node; pre: Node };
  const after = async (milliseconds: number) => {
    mock.timers.tick(milliseconds);
    for (let i = 0; i < 5; i += 1) await new Promise((done) => setImmediate(done));
    return asked;
  };
  return { output, shown, after, end: () => { mock.restoreAll(); mock.timers.reset(); } };
}

test("while the server is away it is asked ever more rarely, and the reason is shown", async () => {
  let away = true;
  const { output, shown, after, end } = read(() => (away ? Promise.reject(new NoServerError("no server", 0)) : Promise.resolve({ text: "epoch 1\n", offset: 8, more: false })));
  output.follow(true);
  assert.equal(await after(0), 1);
  assert.match(shown.trouble.textContent, /no server/);
  for (const [pause, asked] of [[500, 2], [999, 2], [1, 3], [1999, 3], [1, 4]]) {
    output.follow(true); // as often as the pane is drawn
    assert.equal(await after(pause!), asked);
  }
  away = false;
  assert.equal(await after(4000), 5);
  assert.deepEqual([shown.trouble.hidden, shown.pre.textContent], [true, "epoch 1\n"]);
  assert.equal(await after(1000), 6);
  output.stop();
  assert.equal(await after(60_000), 6);
  end();
});

test("a refusal is shown, and not asked for again", async () => {
  const { output, shown, after, end } = read(() => Promise.reject(new ApiError("there is no such run", 404)));
  output.follow(true);
  assert.equal(await after(0), 1);
  assert.equal(await after(600_000), 1);
  assert.match(shown.trouble.textContent, /there is no such run/);
  end();
});

test("what a process printed while it was read is read when the run ends", async () => {
  const waiting: (() => void)[] = [];
  let offset = 0;
  const { output, shown, after, end } = read(() => new Promise((done) => waiting.push(() => done({ text: `part ${(offset += 7)}\n`, offset, more: false }))));
  output.follow(true);
  output.follow(false); // it ended before the answer came
  waiting.shift()!();
  assert.equal(await after(0), 2);
  waiting.shift()!();
  assert.equal(await after(60_000), 2);
  assert.equal(shown.pre.textContent, "part 7\npart 14\n");
  end();
});
