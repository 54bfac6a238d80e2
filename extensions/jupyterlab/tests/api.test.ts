import assert from "node:assert/strict";
import { test } from "node:test";
import { ServerConnection } from "@jupyterlab/services";
import { Api, ApiError, NoServerError, queryText } from "../src/api";
import { NEWEST } from "../src/runs/list";

interface Asked {
  method: string;
  url: string;
  body: unknown;
  match?: string;
  token?: string | null;
}

/** A client whose server answers this, and what it was asked. */
function apiOf(status: number, answer: string, more: Partial<ServerConnection.ISettings> = {}): { api: Api; asked: Asked[] } {
  const asked: Asked[] = [];
  const fetch = async (request: Request): Promise<Response> => {
    const match = request.headers.get("If-Match");
    asked.push({ method: request.method, url: request.url, ...(match === null ? {} : { match }), ...(more.token ? { token: request.headers.get("Authorization") } : {}), body: request.method === "GET" || request.method === "DELETE" ? null : await request.json() });
    return new Response(status === 204 ? null : answer, { status });
  };
  const settings = ServerConnection.makeSettings({ baseUrl: "http://hub/user/me/", wsUrl: "ws://hub/user/me/", ...more, fetch: fetch as typeof globalThis.fetch, Request, Headers });
  return { api: new Api(settings, { absent: "no extension", unreachable: "no server" }), asked };
}

const ref = { root: "a1b2", run: "0001-fit" };

test("addresses are below the server's own, which may be a hub's", async () => {
  const { api, asked } = apiOf(200, "{}", { token: "secret" });
  await api.runs({ ...NEWEST, search: "lr 0.1&x=/..", offset: 50, limit: 50 });
  assert.equal(asked[0]!.url, "http://hub/user/me/workbench/api/runs?search=lr+0.1%26x%3D%2F..&sort=created&order=desc&offset=50&limit=50");
  assert.equal(await api.file("live.js"), "{}");
  assert.equal(asked[1]!.url, "http://hub/user/me/workbench/static/live.js");
  assert.equal(asked[1]!.token, "token secret"); // an import could not carry it
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
  await api.annotate(ref, { notes: "wide" }, "a1");
  await api.remove(ref);
  await api.remove(ref, true);
  const place = "http://hub/user/me/workbench/api/runs/a1b2/0001-fit";
  assert.deepEqual(asked, [
    { method: "POST", url: `${place}/commands`, body: { type: "Stop" } },
    { method: "POST", url: `${place}/commands`, body: { type: "Change", values: { lr: 0.1 } } },
    { method: "PATCH", url: place, body: { pinned: true } },
    { method: "PATCH", url: place, body: { notes: "wide" }, match: '"a1"' },
    { method: "DELETE", url: `${place}?force=0`, body: null },
    { method: "DELETE", url: `${place}?force=1`, body: null },
  ]);
});

test("a refusal is an error with the server's reason; a proxy's page is not shown", async () => {
  const refused = apiOf(409, JSON.stringify({ message: "run 0001-fit is over" })).api;
  await assert.rejects(refused.command(ref, "Stop"), (error: ApiError) => error.status === 409 && error.message === "run 0001-fit is over");
  const proxy = apiOf(502, "<html>Bad gateway</html>").api;
  await assert.rejects(proxy.run(ref), (error: Error) => error instanceof NoServerError && error.message === "no server");
});

test("a server that is away, or that does not have our part, is told in plain words", async () => {
  const absent = apiOf(404, "<html>404 : Not Found</html>").api;
  await assert.rejects(absent.run(ref), (error: Error) => error instanceof NoServerError && error.status === 404 && error.message === "no extension");
  const deleted = apiOf(404, JSON.stringify({ message: "run='0001-fit': there is no such run" })).api;
  await assert.rejects(deleted.run(ref), (error: Error) => !(error instanceof NoServerError) && error.message.includes("no such run"));
  const settings = ServerConnection.makeSettings({ baseUrl: "http://hub/", fetch: () => Promise.reject(new TypeError("Failed to fetch")), Request, Headers });
  const away = new Api(settings, { absent: "", unreachable: "no server" });
  await assert.rejects(away.run(ref), (error: Error) => error instanceof NoServerError && error.status === 0 && error.message === "no server");
});

test("what does not filter is left out of the address", () => {
  assert.equal(queryText({ ...NEWEST, tag: "sgd", offset: 0, limit: 50 }), "tag=sgd&sort=created&order=desc&offset=0&limit=50");
});
