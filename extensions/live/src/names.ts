// Names for what stands beside the canvas in the panel and has none: the slider's handle, which its library leaves nameless.

/** Name the handles of the panel that `host` is in, now and whenever the slider is made anew. Returns what to call at the end. */
export function nameHandles(host: HTMLElement): () => void {
  const steps = host.closest(".wb-panel")?.querySelector(".wb-four");
  if (!steps) return () => {};
  const name = () => {
    steps.querySelectorAll<HTMLElement>(".noUi-handle:not([aria-label])").forEach((handle) => {
      handle.setAttribute("aria-label", "Learning rate, as a power of ten");
    });
  };
  name();
  const observer = new MutationObserver(name);
  observer.observe(steps, { childList: true, subtree: true });
  return () => observer.disconnect();
}
