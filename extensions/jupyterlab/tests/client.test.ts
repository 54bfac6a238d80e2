import assert from "node:assert/strict";
import { test } from "node:test";
import { ApiError } from "../src/api";
import type { Api } from "../src/api";
import { Client } from "../src/client";
import type { Event } from "../src/messages";
import { events } from "./messages";
import { row } from "./rows";

/** A client whose server answers the first question so, and the sockets that it has opened. */
function clientOf(templates: () => Promise<never[]>) {
  const sockets: { onopen(): void; onclose(): void; onmessage(message: { data: string }): void }[] = [];
  const api = { templates, socketUrl: (path: string) => `ws://x/${path}` } as unknown as Api;
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

test("a server without our part is not asked again and again", async () => {
  const { client, sockets } = clientOf(() => Promise.reject(new ApiError("Not Found", 404)));
  await client.start();
  assert.deepEqual([client.link, sockets.length], ["absent", 0]);
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
