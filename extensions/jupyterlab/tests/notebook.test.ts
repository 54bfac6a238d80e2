// What is sent to a kernel, and what comes of the text of a terminal.

import assert from "node:assert/strict";
import test from "node:test";
import { forBench } from "../src/notebook/benches";
import { ask, KernelError } from "../src/notebook/kernel";
import { plainText } from "../src/run/terminal-text";

type Kernel = Parameters<typeof ask>[0];

/** A kernel that answers with these messages. */
function kernel(messages: object[], status: object = { status: "ok" }) {
  const asked: Record<string, unknown>[] = [];
  const connection = {
    requestExecute: (content: Record<string, unknown>) => {
      asked.push(content);
      const future: { onIOPub?: (message: unknown) => void; done: Promise<unknown> } = {
        done: Promise.resolve().then(() => {
          for (const message of messages) future.onIOPub?.(message);
          return { content: status };
        }),
      };
      return future;
    },
  };
  return { asked, connection: connection as unknown as Kernel };
}

const shown = (data: object) => ({ header: { msg_type: "display_data" }, content: { data } });

test("the answer of a kernel is what it shows as JSON, and nothing of it is in the notebook", async () => {
  const { asked, connection } = kernel([shown({ "text/plain": "no" }), shown({ "application/json": { model: "a" } })]);
  assert.deepEqual(await ask(connection, "answer = given", { path: 'a "b"\n\\é' }), { model: "a" });
  assert.equal(asked[0]!["silent"], true);
  assert.equal(asked[0]!["store_history"], false);
});

test("what Python raises is an error with its type and message", async () => {
  const { connection } = kernel([], { status: "error", ename: "ExportError", evalue: "train.py exists." });
  await assert.rejects(ask(connection, ""), (error) => error instanceof KernelError && error.message === "ExportError: train.py exists.");
  await assert.rejects(ask(kernel([], { status: "aborted" }).connection, ""), KernelError);
});

test("a line for a bench of another name", () => {
  assert.equal(forBench("bench.set(lr=1e-3)\nbench.fit(start='my-bench')", "study"), "study.set(lr=1e-3)\nstudy.fit(start='my-bench')");
  assert.equal(forBench("benches.set()", "study"), "benches.set()");
});

test("colours and progress bars of a terminal become plain text", () => {
  assert.equal(plainText("\x1b[31mred\x1b[0m\r\nnext\x1b]8;;http://a\x1b\\link\x1b]8;;\x07"), "red\nnextlink");
  assert.equal(plainText(" 1%|\r50%|\r99%|\nend"), "99%|\nend");
  assert.equal(plainText("half\r"), "half");
});
