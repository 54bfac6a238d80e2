// The toolbar of a plot: horizontal axis, logarithmic axis, options such as smoothing, zooming out, saving, full screen.

import type { Card } from "../shared/card";
import { el, focusIn } from "../shared/dom";
import type { Store } from "../data/store";
import { AXES, type FitAxis } from "./axis";
import type { Frame } from "./frame";
import { download, pngOf, type Saved } from "./save";
import { Smoothing, type Span } from "./smooth";
import { texts } from "../texts";

const { plot: words } = texts;

/** The choice of the horizontal axis, which all plots of a fit share. */
export function axisChoice(axis: FitAxis): { root: HTMLElement; draw: () => void } {
  const root = el("select", "wb-select", "", { "aria-label": texts.axis.label, title: texts.axis.tooltip });
  let told = "";
  const draw = () => {
    const { choices, name } = axis;
    const now = JSON.stringify([choices, name]);
    if (now === told) return;
    told = now;
    root.replaceChildren(...AXES.filter((one) => choices.includes(one)).map((one) => el("option", "", texts.axis.names[one], { value: one })));
    root.value = name;
  };
  root.addEventListener("change", () => axis.choose(root.value as (typeof AXES)[number]));
  root.addEventListener("keydown", (event) => event.stopPropagation()); // the notebook has commands on single keys
  draw();
  return { root, draw };
}

/** A button that shows and sets whether the vertical axis is logarithmic; `draw` brings it up to date. */
export function logToggle(store: Store, name: string, frame: Frame, otherwise: "auto" | "on"): { root: HTMLElement; draw: () => void } {
  frame.log = store.viewOption(name, otherwise);
  const root = el("button", "wb-tool", words.log, { type: "button", "aria-label": words.logLabel });
  const draw = () => {
    root.setAttribute("aria-pressed", String(frame.logarithmic));
    root.title = frame.log === "auto" ? words.logAuto : words.logLabel;
  };
  root.addEventListener("click", () => {
    frame.log = frame.logarithmic ? "off" : "on";
    store.setViewOption(name, frame.log);
    draw();
    frame.draw();
  });
  return { root, draw };
}

/** The smoothing slider of one card. */
export function smoothing(store: Store, name: string, otherwise: Span, changed: () => void): Smoothing {
  return new Smoothing(store.viewOption(name, otherwise), (span) => {
    store.setViewOption(name, span);
    changed();
  });
}

/** What is set rarely: one button opens it all. */
export function options(...parts: HTMLElement[]): HTMLElement {
  return menu("M2 4.5h7M12.5 4.5H14M2 11.5h1.5M7 11.5h7M9 4.5a1.7 1.7 0 1 0 3.4 0a1.7 1.7 0 1 0-3.4 0M3.6 11.5a1.7 1.7 0 1 0 3.4 0a1.7 1.7 0 1 0-3.4 0", words.options, words.options, parts).root;
}

/** Zooming out, saving and full screen, for any card. `file`: the name of a saved file; `frame` is missing where nothing can be zoomed. */
export function plotTools(card: Card, file: string, saved: Saved, frame?: Frame): void {
  if (frame) {
    const whole = icon("M6 2H2v4M10 14h4v-4M2 2l5 5M14 14l-5-5", { type: "button", "aria-label": words.zoomOut, title: words.zoomOutTooltip });
    whole.disabled = true;
    whole.addEventListener("click", () => frame.whole());
    frame.zoomed = () => {
      if (!frame.isZoomed && focusIn(whole)) frame.plot?.over.focus();
      whole.disabled = !frame.isZoomed;
    };
    card.tools.append(whole);
  }
  card.tools.append(save(file, saved), fullScreen(card));
}

/** A button with a small drawing, which every font has. */
function icon(path: string, attributes: Record<string, string>): HTMLButtonElement {
  const button = el("button", "wb-tool wb-icon", "", attributes);
  button.innerHTML = `<svg viewBox="0 0 16 16" width="12" height="12" aria-hidden="true"><path d="${path}" fill="none" stroke="currentColor" stroke-width="1.6"/></svg>`;
  return button;
}

function save(file: string, saved: Saved): HTMLElement {
  const kinds: [string, () => Promise<Blob> | Blob][] = [
    ["PNG", () => pngOf(saved.svg())],
    ["SVG", () => new Blob([saved.svg()], { type: "image/svg+xml" })],
    ["CSV", () => new Blob([saved.csv()], { type: "text/csv" })],
  ];
  const buttons = kinds.map(([kind, make]) => {
    const button = el("button", "wb-tool", kind, { type: "button" });
    button.addEventListener("click", () => {
      void Promise.resolve(make()).then((blob) => download(`${file}.${kind.toLowerCase()}`, blob), reportError);
      close();
    });
    return button;
  });
  const { root, close } = menu("M8 2v8M5 7l3 3 3-3M2 13h12", words.save, words.saveAs, buttons);
  return root;
}

/** A button with a small drawing that opens `parts`; Escape and a focus elsewhere close them. */
function menu(path: string, label: string, about: string, parts: HTMLElement[]): { root: HTMLElement; close: () => void } {
  const root = el("span", "wb-with-menu");
  const open = icon(path, { type: "button", "aria-label": label, title: label, "aria-expanded": "false" });
  // A click on a part that takes no focus gives it to the menu, which so stays open.
  const list = el("span", "wb-menu", "", { role: "group", "aria-label": about, tabindex: "-1" });
  list.append(...parts);
  const set = (on: boolean) => {
    list.hidden = !on;
    open.setAttribute("aria-expanded", String(on));
  };
  const close = () => {
    set(false);
    open.focus();
  };
  set(false);
  open.addEventListener("click", () => set(list.hidden));
  root.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || list.hidden) return;
    event.stopPropagation();
    close();
  }, true); // before a part that keeps keys to itself
  root.addEventListener("focusout", (event) => {
    if (!(event.relatedTarget instanceof Node) || !root.contains(event.relatedTarget)) set(false);
  });
  root.append(open, list);
  return { root, close };
}

function fullScreen(card: Card): HTMLElement {
  const button = icon("M2 6V2h4M10 2h4v4M14 10v4h-4M6 14H2v-4", { type: "button", "aria-label": words.fullScreen, title: words.fullScreenTooltip });
  button.hidden = !document.fullscreenEnabled;
  button.addEventListener("click", () => {
    const page = card.root.getRootNode() as Document | ShadowRoot; // each knows only of the elements within itself
    const now = page.fullscreenElement === card.root ? document.exitFullscreen() : card.root.requestFullscreen();
    now.catch(reportError);
  });
  return button;
}
