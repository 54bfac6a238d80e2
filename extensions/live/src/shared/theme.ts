// Reads the canvas's colours from the style sheet, and follows the theme of the page.

export interface Palette {
  ink: string;
  muted: string;
  grid: string;
  paper: string;
  line: string;
  faint: string;
  dots: string;
  val: string;
  found: string;
  chosen: string;
  clip: string;
  bad: string;
  peak: string;
  none: string;
  pick0: string;
  pick1: string;
  pick2: string;
  pick3: string;
  pick4: string;
}

const NAMES: (keyof Palette)[] = [
  "ink", "muted", "grid", "paper", "line", "faint", "dots", "val", "found", "chosen", "clip", "bad", "peak", "none",
  "pick0", "pick1", "pick2", "pick3", "pick4",
];

export function readPalette(root: HTMLElement): Palette {
  const style = getComputedStyle(root);
  const colours = NAMES.map((name) => [name, style.getPropertyValue(`--wb-${name}`).trim() || "gray"]);
  return Object.fromEntries(colours) as unknown as Palette;
}

/** Mark the root as dark where the page behind it is: that holds in every front end, whatever its variables. */
export function followPage(root: HTMLElement): void {
  root.toggleAttribute("data-dark", isDark(root));
}

/** Whether the page behind an element is dark. */
export function isDark(inside: HTMLElement): boolean {
  return luminance(background(inside)) < 0.5;
}

/** Call `changed` when the page's theme changes. A theme's style sheet may load after the attribute is set. */
export function watchTheme(changed: () => void): () => void {
  let timers: number[] = [];
  const forget = () => timers.forEach(clearTimeout);
  const soon = () => {
    forget();
    timers = [0, 150, 600, 1500].map((ms) => window.setTimeout(changed, ms));
  };
  const observer = new MutationObserver(soon);
  const attributes = ["class", "data-jp-theme-light", "data-jp-theme-name", "data-theme", "data-vscode-theme-kind"];
  for (const target of [document.documentElement, document.body]) {
    observer.observe(target, { attributes: true, attributeFilter: attributes });
  }
  const media = matchMedia("(prefers-color-scheme: dark)");
  media.addEventListener("change", soon);
  return () => {
    observer.disconnect();
    media.removeEventListener("change", soon);
    forget();
  };
}

/** The dashes of lines that are compared, as in their swatches in gradients.css. */
export const DASHES = [[], [7, 4], [2, 3], [8, 3, 2, 3], [14, 4]];

/** The colour of the line of a picked layer, by its place among them. */
export function pickColour(palette: Palette, pick: number): string {
  return [palette.pick0, palette.pick1, palette.pick2, palette.pick3, palette.pick4][pick % 5] as string;
}

type Colour = [number, number, number];

function background(from: HTMLElement): Colour {
  for (let el = parent(from); el; el = parent(el)) {
    const [r, g, b, alpha] = channels(getComputedStyle(el).backgroundColor);
    if (alpha > 0.5) return [r, g, b];
  }
  return [255, 255, 255];
}

/** Red, green and blue up to 255, and alpha up to 1, of a computed colour, which may be given in any of CSS's colour spaces. */
function channels(colour: string): [...Colour, number] {
  const plain = colour.match(/^rgba?\(([\d., ]+)\)$/);
  if (plain !== null) {
    const [r = 255, g = 255, b = 255, alpha = 1] = plain[1]!.split(",").map(Number);
    return [r, g, b, alpha];
  }
  // A browser that protects against fingerprinting may return false pixels.
  pixel ??= Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true })!;
  pixel.clearRect(0, 0, 1, 1);
  pixel.fillStyle = colour;
  pixel.fillRect(0, 0, 1, 1);
  const [r = 255, g = 255, b = 255, alpha = 0] = pixel.getImageData(0, 0, 1, 1).data;
  return [r, g, b, alpha / 255];
}

let pixel: CanvasRenderingContext2D | undefined;

/** The element around this one, also where this one stands at the top of a shadow root. */
function parent(of: Element): Element | null {
  const around = of.parentNode;
  return around instanceof ShadowRoot ? around.host : of.parentElement;
}

function luminance([r, g, b]: Colour): number {
  return (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;
}
