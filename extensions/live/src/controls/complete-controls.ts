// Completes the controls around the canvas where ipywidgets leaves something out for screen readers: a name for the slider's handle,
// which boxes hold invalid values and why, which buttons do nothing now. The slider's value is written as all rates are.

import { setText } from "../shared/dom";
import { rate } from "../shared/format";
import { texts } from "../texts";

let reasons = 0;

/** Complete the controls of the panel that `host` is in, now and whenever they change. Returns what to call at the end. */
export function completeControls(host: HTMLElement): () => void {
  const panel = host.closest(".wb-panel");
  const observer = new MutationObserver(() => complete());
  const observed = new Set<Element>();
  // The form comes when it is first opened; the canvas, which changes often, is not observed.
  const complete = () => {
    for (const part of panel?.querySelectorAll(":is(.wb-four, .wb-run, .wb-form)") ?? []) {
      if (!observed.has(part)) observer.observe(part, { childList: true, subtree: true, attributes: true, attributeFilter: ["class"] });
      observed.add(part);
      completeAll(part);
    }
  };
  if (panel) observer.observe(panel, { childList: true });
  complete();
  return () => observer.disconnect();
}

function completeAll(part: Element): void {
  part.querySelectorAll<HTMLElement>(".noUi-handle:not([aria-label])").forEach((handle) => {
    handle.setAttribute("aria-label", texts.controls.slider);
  });
  part.querySelectorAll<HTMLElement>(".wb-step-lr .widget-readout").forEach((readout) => {
    const value = Number(readout.textContent || NaN);
    if (Number.isFinite(value)) setText(readout, rate(value));
  });
  part.querySelectorAll<HTMLElement>("input[aria-invalid], .wb-refused :is(input, select)").forEach((box) => {
    const refused = box.closest(".wb-refused");
    const why = refused?.parentElement?.querySelector<HTMLElement>(":scope > .wb-why");
    if (why && !why.id) why.id = `wb-why-${(reasons += 1)}`;
    set(box, "aria-invalid", refused && "true");
    set(box, "aria-describedby", why?.id);
  });
  part.querySelectorAll<HTMLElement>("button[aria-disabled], button.wb-off").forEach((button) => {
    set(button, "aria-disabled", button.classList.contains("wb-off") && "true");
  });
}

function set(target: HTMLElement, name: string, value: string | false | null | undefined): void {
  if (value) target.setAttribute(name, value);
  else target.removeAttribute(name);
}
