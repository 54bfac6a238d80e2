import assert from "node:assert/strict";
import { test } from "node:test";
import { keyOf } from "../src/messages";
import type { Page, Query } from "../src/messages";
import { PAGE, RunList } from "../src/runs/list";
import { page, row } from "./rows";

const runs = (count: number) => Array.from({ length: count }, (_, i) => row(`${String(count - i).padStart(4, "0")}-fit`));

/** A list of a server that has these runs, and what it was asked for. */
function listOf(all: ReturnType<typeof runs>): { list: RunList; asked: Query[] } {
  const asked: Query[] = [];
  const list = new RunList(async (query) => {
    asked.push(query);
    const matching = all.filter(({ run }) => run.includes(query.search));
    return page(matching.slice(query.offset, query.offset + query.limit), { matching: matching.length, total: all.length, columns: [`column ${query.offset}`] });
  });
  return { list, asked };
}

test("a page is loaded, and more when it is asked for", async () => {
  const { list } = listOf(runs(120));
  assert.equal(list.page, null);
  await list.refresh();
  assert.equal(list.rows.length, PAGE);
  assert.ok(list.hasMore);
  await list.more();
  await list.more();
  assert.equal(list.rows.length, 120);
  assert.ok(!list.hasMore);
});

test("more can be asked for while the list is loaded again", async () => {
  const { list } = listOf(runs(120));
  await list.refresh();
  const again = list.refresh();
  await list.more();
  await again;
  assert.equal(list.rows.length, 2 * PAGE);
});

test("more comes although the list changes all the time, and the list is loaded once more after the last change", async () => {
  const all = runs(120);
  const waiting: (() => void)[] = [];
  let under = 0;
  const list = new RunList(async ({ offset, limit }) => {
    assert.equal(++under, 1); // one request at a time
    await new Promise<void>((yes) => waiting.push(yes));
    under--;
    return page(all.slice(offset, offset + limit), { matching: all.length, total: all.length });
  });
  const answer = async () => {
    while (waiting.length === 0) await new Promise(setImmediate);
    waiting.shift()!();
  };
  const first = list.refresh();
  await answer();
  await first;
  const more = list.more();
  for (let i = 0; i < 3; i++) void list.refresh();
  await answer();
  while (list.rows.length < 2 * PAGE) await new Promise(setImmediate); // the load that was under way is not lost
  assert.ok(list.loading);
  all.unshift(row("0121-fit"));
  await answer();
  await more;
  assert.deepEqual([list.rows.length, list.rows[0]!.run, list.loading, waiting.length], [2 * PAGE, "0121-fit", false, 0]);
});

test("a run that begins between two pages is no second row of another run", async () => {
  const all = runs(450);
  const { list, asked } = listOf(all);
  await list.refresh();
  for (let i = 0; i < 8; i++) await list.more();
  asked.length = 0;
  asked.push = (query) => {
    if (query.offset === 200 && all.length === 450) all.unshift(row("0451-fit"));
    return Array.prototype.push.call(asked, query);
  };
  await list.refresh();
  assert.equal(new Set(list.rows.map(keyOf)).size, list.rows.length);
  await list.refresh(); // as the server says that one has begun
  assert.deepEqual([list.rows.length, list.rows[0]!.run], [450, "0451-fit"]);
});

test("what is loaded is loaded again in as many requests as the server allows", async () => {
  const { list, asked } = listOf(runs(450));
  await list.refresh();
  for (let i = 0; i < 8; i++) await list.more();
  assert.equal(list.rows.length, 450);
  asked.length = 0;
  await list.refresh();
  assert.deepEqual(asked.map(({ offset, limit }) => [offset, limit]), [[0, 200], [200, 200], [400, 50]]);
  assert.equal(new Set(list.rows.map(keyOf)).size, 450);
  assert.deepEqual([list.rows[0]!.columns, list.rows[449]!.columns], [["column 0"], ["column 400"]]); // each page has its own
});

test("a filter starts from the first page, and the answer to an earlier question is dropped", async () => {
  const waiting: ((page: Page) => void)[] = [];
  const list = new RunList(() => new Promise((yes) => waiting.push(yes)));
  const first = list.ask({ search: "a" });
  const second = list.ask({ search: "b" });
  waiting[1]!(page([row("b")]));
  waiting[0]!(page([row("a")]));
  await Promise.all([first, second]);
  assert.deepEqual(list.rows.map(({ run }) => run), ["b"]);
  assert.equal(list.asks.search, "b");
  assert.ok(!list.loading);
});

test("an error is kept until an answer comes, and the rows stay", async () => {
  let works = true;
  const list = new RunList(async () => {
    if (!works) throw new Error("the server is away");
    return page([row("0001-fit")]);
  });
  await list.refresh();
  works = false;
  await list.refresh();
  assert.equal(list.error, "the server is away");
  assert.equal(list.rows.length, 1);
  works = true;
  await list.refresh();
  assert.equal(list.error, "");
});

test("running rows move, keep their settings, and what ends or begins loads the list again", async () => {
  const list = new RunList(async () => page([row("0002-fit", { status: "running", cells: ["0.1"] }), row("0001-fit")], { columns: ["lr"] }));
  await list.refresh();
  assert.ok(!list.hear({ type: "rows", rows: [row("0002-fit", { status: "running", loss: "0.4" }), row("0009-fit")] }));
  assert.deepEqual([list.rows[0]!.loss, list.rows[0]!.cells, list.rows.length], ["0.4", ["0.1"], 2]);
  assert.ok(list.hear({ type: "ended", row: row("0002-fit", { status: "failed" }) }));
  assert.equal(list.rows[0]!.status, "failed");
  assert.ok(list.hear({ type: "began", row: row("0003-fit", { status: "running" }) }));
  assert.ok(list.hear({ type: "list" }));
});

test("the same id in two folders are two runs", async () => {
  const list = new RunList(async () => page([row("0001-fit"), row("0001-fit", { root: "c3d4" })]));
  await list.refresh();
  list.select(list.rows[1]!, "one");
  assert.deepEqual(list.chosen.map(({ root }) => root), ["c3d4"]);
  list.hear({ type: "rows", rows: [row("0001-fit", { root: "c3d4", loss: "0.1" })] });
  assert.deepEqual(list.rows.map(({ loss }) => loss), ["0.5", "0.1"]);
});

test("one, several and a range are selected", async () => {
  const { list } = listOf(runs(5));
  await list.refresh();
  const ids = () => list.chosen.map(({ run }) => Number(run.slice(0, 4)));
  list.select(list.rows[1]!, "one");
  assert.deepEqual(ids(), [4]);
  list.select(list.rows[3]!, "toggle");
  assert.deepEqual(ids(), [4, 2]);
  list.select(list.rows[3]!, "toggle");
  assert.deepEqual(ids(), [4]);
  list.select(list.rows[1]!, "one");
  list.select(list.rows[3]!, "to");
  assert.deepEqual(ids(), [4, 3, 2]);
  list.select(list.rows[0]!, "to"); // from the same run, in the other direction
  assert.deepEqual([ids(), list.row(list.active)?.run], [[5, 4], "0005-fit"]); // the keyboard is at the end of the range: the next key makes it longer
});

test("a run that is gone is not selected, and the keyboard is at the one in its place", async () => {
  const all = runs(3);
  const { list } = listOf(all);
  await list.refresh();
  list.select(list.rows[1]!, "one");
  all.splice(1, 1);
  await list.refresh();
  assert.deepEqual([list.chosen, list.row(list.active)?.run], [[], "0001-fit"]);
  all.pop();
  await list.refresh();
  assert.equal(list.row(list.active)?.run, "0003-fit");
  all.pop();
  await list.refresh();
  assert.equal(list.active, null);
});

test("rows that are being deleted are left out as long as they are, and not selected", async () => {
  const { list } = listOf(runs(120));
  await list.refresh();
  const [first, second] = list.rows;
  list.select(first!, "one");
  list.hide(({ run }) => run === first!.run);
  assert.equal(list.rows[0], second);
  assert.deepEqual([...list.selected], []);
  assert.equal(list.active, keyOf(second!)); // the keyboard is at the one in its place
  await list.more();
  assert.equal(list.rows.length, 99);
  list.hide(() => false);
  assert.equal(list.rows[0]!.run, first!.run);
});
