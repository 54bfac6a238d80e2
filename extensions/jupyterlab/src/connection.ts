// A websocket that opens again by itself after it was lost.

/** What a connection tells. */
export interface Hears {
  opened(): void;
  heard(data: ArrayBuffer | string): void;
  /** It will be tried again, unless `dispose` was called. */
  lost(): void;
}

const FIRST_MS = 500, LONGEST_MS = 30_000;

/** How long to wait before the n-th try in a row (the first is 0); chance, from 0 to 1, so that not all pages come at once. */
export function pause(tries: number, chance: number): number {
  return Math.min(LONGEST_MS, FIRST_MS * 2 ** tries) * (0.75 + chance / 2);
}

export class Connection {
  private socket: WebSocket | null = null;
  private tries = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private disposed = false;

  /** url: asked for before each try, since a token may have changed. open: `new WebSocket`. */
  constructor(
    private readonly url: () => string,
    private readonly hears: Hears,
    private readonly open: (url: string) => WebSocket = (url) => new WebSocket(url),
  ) {
    this.connect();
  }

  /** What is sent while it is not open is dropped. */
  send(text: string): void {
    if (this.socket?.readyState === 1) this.socket.send(text); // 1: open
  }

  /** Try now, and not only when the pause is over: the browser may know that the network is there again. */
  retry(): void {
    if (this.timer === undefined) return;
    clearTimeout(this.timer);
    this.connect();
  }

  dispose(): void {
    this.disposed = true;
    clearTimeout(this.timer);
    this.socket?.close();
    this.socket = null;
  }

  private connect(): void {
    this.timer = undefined;
    const socket = (this.socket = this.open(this.url()));
    socket.binaryType = "arraybuffer";
    socket.onopen = () => this.hears.opened();
    socket.onmessage = ({ data }) => {
      if (this.socket !== socket) return;
      this.tries = 0; // and not when it opens: a server may open connections only to close them
      this.hears.heard(data as ArrayBuffer | string);
    };
    socket.onclose = () => {
      if (this.disposed || this.socket !== socket) return;
      this.socket = null;
      this.timer = setTimeout(() => this.connect(), pause(this.tries++, Math.random()));
      this.hears.lost();
    };
  }
}
