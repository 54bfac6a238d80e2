import assert from "node:assert/strict";
import { mock, test } from "node:test";
import { ApiError } from "../src/api";
import type { Api } from "../src/api";
import { Client } from "../src/client";
import type { Event, Ref } from "../src/messages";
import { events } from "./messages";
import { row } from "./rows";

/** A client whose server answers the first question so, and the sockets that it has opened. */
function clientOf(templates: () => Promise<never[]>, run: (ref: Ref) => Promise<unknown> = () => new Promise(() => {})) {
  const sockets: { onopen(): void; onclose(): void; onmessage(message: { data: string }): void }[] = [];
  const api = { templates, run, socketUrl: (path: string) => `ws://x/${path}` } as unknown as Api;
  const client = new Client(api, () => {
    const socket = { onopen: () => {}, onclose: () => {}, onmessage: () => {}, close: () => {}, readyState: 1, send: () => {} };
    sockets.push(socket);
    return socket as unknown as WebSocket;
  });
  const heard: (Event | string)[] = [];
  client.events.connect((_, event) => heard.push(event));
  client.linked.connect((_, link) => heard.push(link));
  const say = (event: unknown) => sockets.at(-1)!.onmessage({ data: JSON.stringify(event) });
  return { client, sockets, heard, say };
}

/** Let what was promised happen. */
const settled = () => new Promise((done) => setImmediate(done));

test("a server without our part is asked again, ever more rarely, until it has it", async () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  let asked = 0, absent = true;
  const { client, sockets } = clientOf(() => {
    asked += 1;
    return absent ? Promise.reject(new ApiError("Not Found", 404)) : Promise.resolve([]);
  });
  await client.start();
  assert.deepEqual([client.link, sockets.length], ["absent", 0]);
  for (const after of [15_000, 30_000, 60_000]) {
    mock.timers.tick(after - 1);
    await settled();
    const before = asked;
    mock.timers.tick(1);
    await settled();
    assert.equal(asked, before + 1);
  }
  absent = false;
  client.retry(); // a person does not wait
  await settled();
  sockets[0]!.onopen();
  mock.timers.tick(10_000_000);
  await settled();
  assert.deepEqual([client.link, sockets.length, asked], ["open", 1, 5]);
  mock.timers.reset();
});

/** A client with two live runs whose answers about a run are `answers`. */
async function withTwoRuns(answers: Record<string, () => unknown>) {
  mock.timers.enable({ apis: ["setTimeout"] });
  const asked: string[] = [];
  const all = clientOf(async () => [], async ({ run }) => {
    asked.push(run);
    return answers[run]!();
  });
  await all.client.start();
  all.sockets[0]!.onopen();
  all.say({ type: "rows", rows: ["0001-fit", "0002-fit"].map((run) => row(run, { status: "running" })) });
  const later = async () => {
    mock.timers.tick(2000);
    await settled();
  };
  return { ...all, asked, later, live: () => [...all.client.live.values()].map(({ run }) => run) };
}

test("a run that ended while the connection was lost is told once", async () => {
  const over = row("0001-fit", { status: "failed" });
  const { client, sockets, heard, say, asked, later, live } = await withTwoRuns({ "0001-fit": () => ({ row: over }) });
  sockets[0]!.onclose();
  client.retry();
  sockets[1]!.onopen();
  say({ type: "rows", rows: [row("0002-fit", { status: "running" })] });
  await later();
  assert.deepEqual([asked, live()], [["0001-fit"], ["0002-fit"]]);
  assert.deepEqual(heard.at(-1), { type: "ended", row: over });
  const before = heard.length;
  say({ type: "ended", row: over }); // another page was connected all the time
  assert.equal(heard.length, before);
  say({ type: "began", row: row("0001-fit", { status: "running" }) }); // its id is given again after it was deleted
  say({ type: "ended", row: over });
  assert.equal(heard.length, before + 2);
  mock.timers.reset();
});

test("one that was told meanwhile is not asked for, and one that cannot be asked for is asked again", async () => {
  const over = row("0001-fit");
  let away = true;
  const { client, sockets, heard, say, asked, later, live } = await withTwoRuns({ "0002-fit": () => (away ? Promise.reject(new ApiError("Bad Gateway", 502)) : { row: row("0002-fit") }) });
  for (const socket of [0, 1]) {
    sockets[socket]!.onclose();
    client.retry();
    sockets[socket + 1]!.onopen();
    say({ type: "rows", rows: [] });
    say({ type: "ended", row: over });
    await later();
    assert.deepEqual([asked.length, live()], [socket + 1, []]);
    say({ type: "list" });
    away = false;
  }
  assert.deepEqual(heard.filter((one) => typeof one !== "string" && one.type === "ended").map((one) => (one as { row: { run: string } }).row.run), ["0001-fit", "0001-fit", "0002-fit"]);
  mock.timers.reset();
});

test("a run whose folder was removed while it ran is not live", async () => {
  const { heard, say, asked, later, live } = await withTwoRuns({
    "0001-fit": () => Promise.reject(new ApiError("there is no such run", 404)),
    "0002-fit": () => ({ row: row("0002-fit", { status: "running" }) }),
  });
  say({ type: "list" });
  say({ type: "rows", rows: [row("0002-fit", { status: "running", step: 11 })] });
  await later();
  assert.deepEqual([asked, live()], [["0001-fit"], ["0002-fit"]]);
  assert.deepEqual(heard.at(-1), { type: "list" }); // whoever shows it draws again
  mock.timers.reset();
});

test("one that cannot be reached yet is", async () => {
  const { client, sockets } = clientOf(() => Promise.reject(new TypeError("Failed to fetch")));
  await client.start();
  assert.deepEqual([client.link, sockets.length], ["connecting", 1]);
});

test("the runs that are not over are those of the last messages, and of a new connection", async () => {
  const { client, sockets, heard, say } = clientOf(async () => []);
  await client.start();
  sockets[0]!.onopen();
  for (const event of events) say(event); // as the server sends them
  assert.deepEqual(heard.slice(1), events);
  assert.deepEqual([...client.live.values()].map(({ run }) => run), ["0003-fit"]);
  say({ type: "rows", rows: [row("0004-fit", { status: "paused" })] });
  say({ type: "ended", row: row("0003-fit", { root: "0123456789ab", status: "stopped" }) });
  assert.deepEqual([...client.live.values()].map(({ run }) => run), ["0004-fit"]);
  say({ type: "weather" });
  sockets[0]!.onclose();
  assert.equal(client.link, "lost");
  client.retry();
  sockets[1]!.onopen();
  assert.deepEqual([client.link, client.live.size], ["open", 0]);
});
