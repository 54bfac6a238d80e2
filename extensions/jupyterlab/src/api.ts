// Asks the server: one method for each of its routes (workbench/server/).

import { URLExt } from "@jupyterlab/coreutils";
import { ServerConnection } from "@jupyterlab/services";
import type { Annotations, CommandType, Details, Output, Page, Query, Ref, Row, StudyPage, Template } from "./messages";
import type { Texts } from "./texts";

const ROOT = "workbench/";

/** The server refused; the message is for the person who asked. `status`: of HTTP. */
export class ApiError extends Error {
  constructor(message: string, readonly status: number) {
    super(message);
  }
}

/** The question did not reach our part of the server. */
export class NoServerError extends ApiError {}

/** The status of an answer that refuses a change to what somebody else has changed meanwhile. */
export const STALE = 412;

/** Proxies answer so where the server behind them does not. */
const FROM_PROXIES = [502, 503, 504];

export class Api {
  /** texts: what to say where the question did not reach our part of the server. */
  constructor(readonly settings: ServerConnection.ISettings, private readonly texts: Pick<Texts, "absent" | "unreachable">) {}

  /** The text of a file that the server keeps for the page. It is asked for as all else is, so that the same proofs of who asks go with it. */
  file(name: string): Promise<string> {
    return this.request("GET", `static/${name}`);
  }

  /** The address of a websocket; whoever opens it may have to prove who they are by a token in it. */
  socketUrl(path: string): string {
    const url = URLExt.join(this.settings.wsUrl, ROOT, path);
    if (!this.settings.appendToken || !this.settings.token) return url;
    return `${url}${url.includes("?") ? "&" : "?"}token=${encodeURIComponent(this.settings.token)}`;
  }

  runs(query: Query): Promise<Page> {
    return this.ask("GET", `api/runs?${queryText(query)}`);
  }

  studies(): Promise<StudyPage> {
    return this.ask("GET", "api/studies");
  }

  run(ref: Ref): Promise<Details> {
    return this.ask("GET", pathOf(ref));
  }

  async command(ref: Ref, type: CommandType, values?: Record<string, unknown>): Promise<void> {
    await this.ask("POST", `${pathOf(ref)}/commands`, values === undefined ? { type } : { type, values });
  }

  /** version: of the row on which the change is based; the server refuses it with STALE if somebody has changed that row since. */
  annotate(ref: Ref, changes: Annotations, version?: string): Promise<Row> {
    return this.ask("PATCH", pathOf(ref), changes, version === undefined ? {} : { "If-Match": `"${version}"` });
  }

  /** force: also one that another run continues. */
  async remove(ref: Ref, force = false): Promise<void> {
    await this.ask("DELETE", `${pathOf(ref)}?force=${Number(force)}`);
  }

  /** offset: -1 for its last part. */
  output(ref: Ref, offset: number): Promise<Output> {
    return this.ask("GET", `${pathOf(ref)}/output?offset=${offset}`);
  }

  templates(): Promise<Template[]> {
    return this.ask("GET", "api/templates");
  }

  /** The notebook, as nbformat has it. */
  template(name: string): Promise<Record<string, unknown>> {
    return this.ask("GET", `api/templates/${encodeURIComponent(name)}`);
  }

  private async ask<T>(method: string, path: string, body?: unknown, headers: Record<string, string> = {}): Promise<T> {
    const text = await this.request(method, path, body, headers);
    return (text ? JSON.parse(text) : undefined) as T;
  }

  private async request(method: string, path: string, body?: unknown, headers: Record<string, string> = {}): Promise<string> {
    // Not "no-store", JupyterLab's default: that adds an argument without a name to each address.
    const request: RequestInit = { method, cache: "no-cache", headers, ...(body === undefined ? {} : { body: JSON.stringify(body) }) };
    const response = await ServerConnection.makeRequest(URLExt.join(this.settings.baseUrl, ROOT, path), request, this.settings).catch((error: unknown) => {
      throw error instanceof ServerConnection.NetworkError ? new NoServerError(this.texts.unreachable, 0) : error;
    });
    const text = await response.text();
    if (!response.ok) throw this.refusal(response, reasonOf(text));
    return text;
  }

  private refusal({ status, statusText }: Response, reason: string | null): ApiError {
    if (reason === null && status === 404) return new NoServerError(this.texts.absent, status);
    if (reason === null && FROM_PROXIES.includes(status)) return new NoServerError(this.texts.unreachable, status);
    return new ApiError(reason ?? `${status} ${statusText}`, status);
  }
}

function pathOf({ root, run }: Ref): string {
  return `api/runs/${encodeURIComponent(root)}/${encodeURIComponent(run)}`;
}

/** What does not filter is left out. */
export function queryText(query: Query): string {
  const given = Object.entries(query).filter(([, value]) => value !== "");
  return new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
}

/** The reason in an answer of the server; null: a proxy before it answered. */
function reasonOf(text: string): string | null {
  try {
    const { message } = JSON.parse(text) as { message?: unknown };
    return typeof message === "string" && message ? message : null;
  } catch {
    return null;
  }
}
