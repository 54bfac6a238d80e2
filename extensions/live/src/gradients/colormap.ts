// Two colour maps that the colour-blind can read: one for sizes, one for values around a usual one.

type Colour = readonly [number, number, number];

/** Viridis, from nine of its colours: even in lightness, readable on light and dark. */
const SIZES: Colour[] = [
  [68, 1, 84], [71, 44, 122], [59, 81, 139], [44, 113, 142], [33, 144, 141], [39, 173, 129], [92, 200, 99],
  [170, 220, 50], [253, 231, 37],
];
/** Blue below, orange above; what is usual lies near the paper. */
const AROUND = { light: [[23, 78, 138], [108, 160, 208], [228, 230, 232], [240, 164, 90], [160, 66, 8]],
  dark: [[140, 196, 255], [58, 110, 168], [48, 54, 62], [176, 98, 28], [255, 176, 92]] } as const;

const SHADES = 256;

/** A ramp of `SHADES` colours, as a canvas has them in memory: red in the lowest byte, opaque. */
export type Ramp = Uint32Array;

function ramp(stops: readonly Colour[]): Ramp {
  return Uint32Array.from({ length: SHADES }, (_, i) => pixel(between(stops, i / (SHADES - 1))));
}

function between(stops: readonly Colour[], share: number): Colour {
  const at = share * (stops.length - 1);
  const i = Math.min(Math.floor(at), stops.length - 2);
  const [a, b] = [stops[i] as Colour, stops[i + 1] as Colour];
  const t = at - i;
  return [a[0] + (b[0] - a[0]) * t, a[1] + (b[1] - a[1]) * t, a[2] + (b[2] - a[2]) * t];
}

function pixel([r, g, b]: Colour): number {
  return ((255 << 24) | (Math.round(b) << 16) | (Math.round(g) << 8) | Math.round(r)) >>> 0;
}

export const viridis: Ramp = ramp(SIZES);
export const around: { light: Ramp; dark: Ramp } = { light: ramp(AROUND.light), dark: ramp(AROUND.dark) };

/** The colour at `share` of the way; what lies outside has the colour of its end. */
export function shade(map: Ramp, share: number): number {
  const at = Math.round(share * (SHADES - 1));
  return map[at < 0 ? 0 : at >= SHADES ? SHADES - 1 : at] as number;
}

/** The whole ramp as a background, from left to right. */
export function gradient(map: Ramp): string {
  const stops = [0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1].map((share) => {
    const colour = shade(map, share);
    return `rgb(${colour & 255} ${(colour >> 8) & 255} ${(colour >> 16) & 255})`;
  });
  return `linear-gradient(to right, ${stops.join(", ")})`;
}

/** A colour of the style sheet ("#d1343b", "#fff") as a canvas has it in memory. */
export function pixelOf(hex: string): number {
  return pixel(parsed(hex));
}

export function isDark(hex: string): boolean {
  const [r, g, b] = parsed(hex);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b < 128;
}

function parsed(hex: string): Colour {
  const digits = hex.replace("#", "");
  const whole = digits.length < 6 ? [...digits].map((d) => d + d).join("") : digits;
  const number = Number.parseInt(whole.slice(0, 6), 16);
  return Number.isNaN(number) ? [128, 128, 128] : [(number >> 16) & 255, (number >> 8) & 255, number & 255];
}
