// What the processes of a launched run have printed, followed to its end while the run runs.

import { el, setText } from "../../../live/src/shared/dom";
import { ApiError, NoServerError, type Api } from "../api";
import { pause } from "../connection";
import type { Ref } from "../messages";
import { plainText } from "./terminal-text";
import type { PaneTexts } from "./texts";

const AGAIN_MS = 1000;
/** So many characters are kept in the page. */
const MOST = 200_000;

export class OutputText {
  readonly root = el("div", "wb-pane-output");
  private readonly trouble = el("p", "wb-pane-message", "", { role: "status" });
  private readonly cut: HTMLElement;
  private readonly pre: HTMLPreElement;
  private text = "";
  private next = -1;
  private tries = 0;
  private reading = false;
  private again = false;
  private timer: ReturnType<typeof setTimeout> | undefined;
  /** Whether the run runs that is followed; null: none is. */
  private followed: boolean | null = null;

  constructor(private readonly api: Pick<Api, "output">, private readonly ref: Ref, private readonly texts: PaneTexts) {
    this.cut = el("p", "wb-pane-quiet", texts.outputCut);
    this.pre = el("pre", "", texts.outputNone, { tabindex: "0", role: "region", "aria-label": texts.outputText });
    this.cut.hidden = this.trouble.hidden = true;
    this.root.append(this.trouble, this.cut, this.pre);
  }

  /** Reads the output to its end. While the run is live it reads on, until it is stopped. */
  follow(live: boolean): void {
    if (this.followed === live) return;
    this.followed = live;
    this.tries = 0;
    void this.read();
  }

  stop(): void {
    this.followed = null;
    clearTimeout(this.timer);
  }

  private async read(): Promise<void> {
    this.again = true; // also where it is being read: a process may print after the part that was asked for
    if (this.reading) return;
    clearTimeout(this.timer);
    this.reading = true;
    let wait: number | null = AGAIN_MS;
    try {
      while (this.again) {
        this.again = false;
        await this.readOn();
      }
      this.tries = 0;
      this.say("");
      if (!this.followed) wait = null;
    } catch (error) {
      this.say(this.texts.outputFailed(error instanceof Error ? error.message : String(error)));
      const refused = error instanceof ApiError && !(error instanceof NoServerError) && error.status < 500;
      wait = refused ? null : pause(this.tries++, Math.random());
    }
    this.reading = false;
    if (wait !== null && this.followed !== null) this.timer = setTimeout(() => void this.read(), wait);
  }

  private async readOn(): Promise<void> {
    for (let more = true; more; ) {
      const first = this.next < 0;
      const part = await this.api.output(this.ref, this.next);
      if (first) this.cut.hidden = part.offset <= new TextEncoder().encode(part.text).length;
      this.next = part.offset;
      more = part.more;
      this.add(part.text);
    }
  }

  private say(text: string): void {
    this.trouble.hidden = !text;
    setText(this.trouble, text);
  }

  private add(text: string): void {
    if (!text) return;
    const { pre } = this;
    const atEnd = pre.scrollHeight - pre.scrollTop - pre.clientHeight < 20;
    this.text += text;
    if (this.text.length > MOST) {
      this.text = this.text.slice(this.text.indexOf("\n", this.text.length - MOST) + 1);
      this.cut.hidden = false;
    }
    pre.textContent = plainText(this.text);
    if (atEnd) pre.scrollTop = pre.scrollHeight;
  }
}
