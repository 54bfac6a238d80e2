import assert from "node:assert/strict";
import { mock, test } from "node:test";
import { Connection, pause } from "../src/connection";

class Socket {
  static all: Socket[] = [];
  readyState = 0;
  binaryType = "";
  sent: string[] = [];
  onopen = () => {};
  onclose = () => {};
  onmessage = (_: { data: string }) => {};
  constructor(readonly url: string) {
    Socket.all.push(this);
  }
  send(text: string): void {
    this.sent.push(text);
  }
  open(): void {
    this.readyState = 1;
    this.onopen();
  }
  close(): void {
    this.readyState = 3;
    this.onclose();
  }
}

function connect(): { connection: Connection; heard: string[]; newest: () => Socket } {
  Socket.all = [];
  const heard: string[] = [];
  const hears = { opened: () => heard.push("opened"), heard: (data: unknown) => heard.push(String(data)), lost: () => heard.push("lost") };
  const connection = new Connection(() => `ws://x/${Socket.all.length}`, hears, (url) => new Socket(url) as unknown as WebSocket);
  return { connection, heard, newest: () => Socket.all.at(-1)! };
}

test("pauses grow up to half a minute, and not all pages wait equally long", () => {
  assert.deepEqual([0, 1, 2, 3].map((tries) => pause(tries, 0.5)), [500, 1000, 2000, 4000]);
  assert.equal(pause(50, 0.5), 30_000);
  assert.ok(pause(3, 0) < pause(3, 1));
});

test("a connection that is lost opens again with a new address, later each time it fails", () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  mock.method(Math, "random", () => 0.5);
  const { heard, newest } = connect();
  newest().open();
  newest().onmessage({ data: "one" });
  newest().close();
  assert.deepEqual(heard, ["opened", "one", "lost"]);
  mock.timers.tick(499);
  assert.equal(Socket.all.length, 1);
  mock.timers.tick(1);
  assert.equal(newest().url, "ws://x/1");
  newest().open();
  newest().close(); // the server opens and closes: that is no success
  mock.timers.tick(999);
  assert.equal(Socket.all.length, 2);
  mock.timers.tick(1);
  assert.equal(Socket.all.length, 3);
  newest().open();
  newest().onmessage({ data: "two" });
  newest().close();
  mock.timers.tick(500);
  assert.equal(Socket.all.length, 4);
  mock.restoreAll();
  mock.timers.reset();
});

test("what is sent while it is not open is dropped", () => {
  const { connection, newest } = connect();
  connection.send("early");
  newest().open();
  connection.send("now");
  assert.deepEqual(newest().sent, ["now"]);
  connection.dispose();
});

test("one that was disposed of stays closed and says nothing", () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  const { connection, heard, newest } = connect();
  newest().open();
  connection.dispose();
  mock.timers.tick(60_000);
  assert.deepEqual([heard, Socket.all.length, newest().readyState], [["opened"], 1, 3]);
  mock.timers.reset();
});

test("retry does not wait, and does nothing while it is open", () => {
  mock.timers.enable({ apis: ["setTimeout"] });
  const { connection, newest } = connect();
  connection.retry();
  assert.equal(Socket.all.length, 1);
  newest().close();
  connection.retry();
  assert.equal(Socket.all.length, 2);
  mock.timers.tick(60_000);
  assert.equal(Socket.all.length, 2);
  mock.timers.reset();
});
