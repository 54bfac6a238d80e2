// Viridis, from nine of its colours: even in lightness, readable on light and dark, and by the colour-blind.

type Colour = readonly [number, number, number];

const STOPS: Colour[] = [
  [68, 1, 84], [71, 44, 122], [59, 81, 139], [44, 113, 142], [33, 144, 141], [39, 173, 129], [92, 200, 99],
  [170, 220, 50], [253, 231, 37],
];

/** The colour at `share` of the way, 0 to 1. */
export function viridis(share: number): Colour {
  const at = Math.min(Math.max(share, 0), 1) * (STOPS.length - 1);
  const i = Math.min(Math.floor(at), STOPS.length - 2);
  const [a, b] = [STOPS[i] as Colour, STOPS[i + 1] as Colour];
  const t = at - i;
  return [a[0] + (b[0] - a[0]) * t, a[1] + (b[1] - a[1]) * t, a[2] + (b[2] - a[2]) * t];
}

export function gradient(): string {
  const stops = STOPS.map(([r, g, b]) => `rgb(${r} ${g} ${b})`);
  return `linear-gradient(to right, ${stops.join(", ")})`;
}
