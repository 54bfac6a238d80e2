"""The page draws again what it drew before, without a word from the kernel: what the drawing itself takes from the machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Page

# The kernel's socket hands on what it hears as ever; what it heard while the tape ran can be heard again, at the same pace.
SOCKET = """(() => {
  const tape = window.__tape = { on: false, heard: [], playing: false };
  const text = new TextDecoder();
  window.WebSocket = class extends window.WebSocket {
    constructor(...args) {
      super(...args);
      this.addEventListener('message', (event) => {
        if (!tape.on || event.again || !(event.data instanceof ArrayBuffer)) return;
        if (!text.decode(event.data.slice(0, 2000)).includes('"comm_msg"')) return;
        tape.heard.push({ socket: this, when: performance.now(), data: event.data });
      });
    }
  };
  tape.record = () => { tape.heard = []; tape.on = true; };
  tape.stop = () => { tape.on = false; return tape.heard.length; };
  // From the beginning again where it is at its end: what plays beside it may take longer.
  tape.play = () => {
    const heard = tape.heard, first = heard[0].when;
    let began = performance.now(), next = 0;
    tape.playing = true;
    const turn = () => {
      if (!tape.playing) return;
      const one = heard[next++];
      const event = new MessageEvent('message', { data: one.data.slice(0) });
      event.again = true;
      one.socket.dispatchEvent(event);
      if (next === heard.length) [next, began] = [0, performance.now() + 100];
      setTimeout(turn, Math.max(0, heard[next].when - first - (performance.now() - began)));
    };
    turn();
  };
  tape.end = () => { tape.playing = false; };
  // In some of the turns that begin at `began` (ms since 1970), of so many ms each, one after the other.
  tape.playIn = (turns, began, each) => turns.forEach((on, i) => {
    if (!on) return;
    setTimeout(tape.play, began + i * each - Date.now());
    setTimeout(tape.end, began + (i + 1) * each - Date.now());
  });
})()"""


@contextmanager
def recorded(page: Page) -> Iterator[None]:
    """Inside, what the page is told goes onto the tape."""
    page.evaluate("() => __tape.record()")
    yield
    assert page.evaluate("() => __tape.stop()") > 0, "the page was told nothing"
