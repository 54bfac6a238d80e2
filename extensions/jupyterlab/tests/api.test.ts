import assert from "node:assert/strict";
import { test } from "node:test";
import { ServerConnection } from "@jupyterlab/services";
import { Api, ApiError, queryText } from "../src/api";
import { NEWEST } from "../src/runs/list";

interface Asked {
  method: string;
  url: string;
  body: unknown;
}

/** A client whose server answers this, and what it was asked. */
function apiOf(status: number, answer: string, more: Partial<ServerConnection.ISettings> = {}): { api: Api; asked: Asked[] } {
  const asked: Asked[] = [];
  const fetch = async (request: Request): Promise<Response> => {
    asked.push({ method: request.method, url: request.url, body: request.method === "GET" || request.method === "DELETE" ? null : await request.json() });
    return new Response(status === 204 ? null : answer, { status });
  };
  const settings = ServerConnection.makeSettings({ baseUrl: "http://hub/user/me/", wsUrl: "ws://hub/user/me/", ...more, fetch: fetch as typeof globalThis.fetch, Request, Headers });
  return { api: new Api(settings), asked };
}

const ref = { root: "a1b2", run: "0001-fit" };

test("addresses are below the server's own, which may be a hub's", async () => {
  const { api, asked } = apiOf(200, "{}");
  await api.runs({ ...NEWEST, search: "lr 0.1&x=/..", offset: 50, limit: 50 });
  assert.equal(asked[0]!.url, "http://hub/user/me/workbench/api/runs?search=lr+0.1%26x%3D%2F..&sort=created&order=desc&offset=50&limit=50");
  assert.equal(api.url("static/live.js"), "http://hub/user/me/workbench/static/live.js");
});

test("a websocket carries the token where the page does", () => {
  const { api } = apiOf(200, "{}", { token: "se&cret", appendToken: true });
  assert.equal(api.socketUrl("api/events"), "ws://hub/user/me/workbench/api/events?token=se%26cret");
  assert.equal(api.socketUrl("api/canvas?root=a"), "ws://hub/user/me/workbench/api/canvas?root=a&token=se%26cret");
  const cookies = apiOf(200, "{}", { token: "", appendToken: true }).api;
  assert.equal(cookies.socketUrl("api/events"), "ws://hub/user/me/workbench/api/events");
});

test("commands, annotations and deletions are requests of their own", async () => {
  const { api, asked } = apiOf(204, "");
  await api.command(ref, "Stop");
  await api.command(ref, "Change", { lr: 0.1 });
  await api.annotate(ref, { pinned: true });
  await api.remove(ref);
  await api.remove(ref, true);
  const place = "http://hub/user/me/workbench/api/runs/a1b2/0001-fit";
  assert.deepEqual(asked, [
    { method: "POST", url: `${place}/commands`, body: { type: "Stop" } },
    { method: "POST", url: `${place}/commands`, body: { type: "Change", values: { lr: 0.1 } } },
    { method: "PATCH", url: place, body: { pinned: true } },
    { method: "DELETE", url: `${place}?force=0`, body: null },
    { method: "DELETE", url: `${place}?force=1`, body: null },
  ]);
});

test("a refusal is an error with the server's reason; a proxy's page is not shown", async () => {
  const refused = apiOf(409, JSON.stringify({ message: "run 0001-fit is over" })).api;
  await assert.rejects(refused.command(ref, "Stop"), (error: ApiError) => error.status === 409 && error.message === "run 0001-fit is over");
  const proxy = apiOf(502, "<html>Bad gateway</html>").api;
  await assert.rejects(proxy.run(ref), (error: ApiError) => error.status === 502 && !error.message.includes("<"));
});

test("what does not filter is left out of the address", () => {
  assert.equal(queryText({ ...NEWEST, tag: "sgd", offset: 0, limit: 50 }), "tag=sgd&sort=created&order=desc&offset=0&limit=50");
});
