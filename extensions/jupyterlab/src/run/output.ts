// What the processes of a launched run have printed, followed to its end while the run runs.

import { el } from "../../../live/src/shared/dom";
import type { Api } from "../api";
import type { Ref } from "../messages";
import { plainText } from "./terminal-text";
import type { PaneTexts } from "./texts";

const AGAIN_MS = 1000;
/** So many characters are kept in the page. */
const MOST = 200_000;

export class OutputText {
  readonly root = el("div", "wb-pane-output");
  private readonly cut: HTMLElement;
  private readonly pre: HTMLPreElement;
  private text = "";
  private next = -1;
  private reading = false;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private wanted = false;

  constructor(private readonly api: Api, private readonly ref: Ref, texts: PaneTexts, private readonly failed: (error: unknown) => void) {
    this.cut = el("p", "wb-pane-quiet", texts.outputCut);
    this.pre = el("pre", "", texts.outputNone, { tabindex: "0", role: "region", "aria-label": texts.outputText });
    this.cut.hidden = true;
    this.root.append(this.cut, this.pre);
  }

  /** Read on; `live`: and again, until it is told otherwise. */
  follow(live: boolean): void {
    this.wanted = live;
    void this.read();
  }

  stop(): void {
    this.wanted = false;
    clearTimeout(this.timer);
  }

  private async read(): Promise<void> {
    if (this.reading) return;
    clearTimeout(this.timer);
    this.reading = true;
    try {
      for (let more = true; more; ) {
        const first = this.next < 0;
        const part = await this.api.output(this.ref, this.next);
        if (first) this.cut.hidden = part.offset <= new TextEncoder().encode(part.text).length;
        this.next = part.offset;
        more = part.more;
        this.add(part.text);
      }
    } catch (error) {
      this.failed(error);
    } finally {
      this.reading = false;
      if (this.wanted) this.timer = setTimeout(() => void this.read(), AGAIN_MS);
    }
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
