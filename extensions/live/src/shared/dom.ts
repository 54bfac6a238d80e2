// Makes elements and sets their text.

type Attributes = Record<string, string>;

export function el<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  className = "",
  text = "",
  attributes: Attributes = {},
): HTMLElementTagNameMap[K] {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

/** Set text only where it differs, so that selections and screen readers are left in peace. */
export function setText(target: HTMLElement, text: string): void {
  if (target.textContent !== text) target.textContent = text;
}

/** What has the keyboard's focus within an element, itself included; null: nothing. The element may be in a shadow root, as in marimo. */
export function focusIn(part: Element | undefined): HTMLElement | null {
  const root = part?.getRootNode();
  const at = root instanceof Document || root instanceof ShadowRoot ? root.activeElement : null;
  return part?.contains(at) ? (at as HTMLElement | null) : null;
}

/** A button that is pressed or not; `set` hears which. */
export function toggle(text: string, title: string, on: boolean, set: (on: boolean) => void): HTMLButtonElement {
  const button = el("button", "wb-tool", text, { type: "button", "aria-pressed": String(on), title });
  button.addEventListener("click", () => {
    const now = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(now));
    set(now);
  });
  return button;
}

/**
 * Keep the notebook's commands off single keys in the panel that `root` is in. Notebook 7 looks for them before an element gets the key,
 * and skips elements with this attribute. Those with Ctrl, such as saving, and Shift+Enter stay the notebook's. Returns what ends it.
 */
export function keepKeys(root: HTMLElement): () => void {
  const listener = (event: KeyboardEvent) => {
    const target = event.composedPath()[0] as Element;
    const command = event.ctrlKey || event.metaKey || event.altKey || (event.shiftKey && event.key === "Enter");
    if ((root.closest(".wb-panel") ?? root).contains(target)) target.toggleAttribute("data-lm-suppress-shortcuts", !command);
  };
  addEventListener("keydown", listener, true);
  return () => removeEventListener("keydown", listener, true);
}
