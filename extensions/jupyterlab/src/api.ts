// Asks the server: one method for each of its routes (workbench/server/).

import { URLExt } from "@jupyterlab/coreutils";
import { ServerConnection } from "@jupyterlab/services";
import type { Annotations, CommandType, Details, Output, Page, Query, Ref, Row, Template } from "./messages";

const ROOT = "workbench/";

/** The server refused; the message is for the person who asked. `status`: of HTTP. */
export class ApiError extends Error {
  constructor(message: string, readonly status: number) {
    super(message);
  }
}

export class Api {
  constructor(readonly settings: ServerConnection.ISettings) {}

  /** The address of a file that the server keeps for the page. */
  url(path: string): string {
    return URLExt.join(this.settings.baseUrl, ROOT, path);
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

  run(ref: Ref): Promise<Details> {
    return this.ask("GET", pathOf(ref));
  }

  async command(ref: Ref, type: CommandType, values?: Record<string, unknown>): Promise<void> {
    await this.ask("POST", `${pathOf(ref)}/commands`, values === undefined ? { type } : { type, values });
  }

  annotate(ref: Ref, changes: Annotations): Promise<Row> {
    return this.ask("PATCH", pathOf(ref), changes);
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

  private async ask<T>(method: string, path: string, body?: unknown): Promise<T> {
    // Not "no-store", JupyterLab's default: that adds an argument without a name to each address.
    const request: RequestInit = { method, cache: "no-cache", ...(body === undefined ? {} : { body: JSON.stringify(body) }) };
    const response = await ServerConnection.makeRequest(this.url(path), request, this.settings);
    const text = await response.text();
    if (!response.ok) throw new ApiError(reasonOf(text) ?? `${response.status} ${response.statusText}`, response.status);
    return (text ? JSON.parse(text) : undefined) as T;
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
