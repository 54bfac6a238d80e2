// Numbers as a person reads them.

/** A learning rate: "3.2e-3", "0.05", "1e-3". */
export function rate(value: number): string {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(Number(value.toPrecision(6))); // 0.01 as float32 is a little less
  if (value === 0 || (size >= 0.01 && size < 100)) return String(Number(value.toPrecision(3)));
  return short(value.toExponential(2));
}

/** A loss or a norm, four digits at most. */
export function number(value: number): string {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (value === 0 || (size >= 1e-3 && size < 1e5)) return String(Number(value.toPrecision(4)));
  return short(value.toExponential(2));
}

/** An axis tick. */
export function tick(value: number): string {
  const size = Math.abs(value);
  if (value === 0 || (size >= 1e-3 && size < 1e4)) return String(Number(value.toPrecision(6)));
  return short(value.toExponential(2));
}

/** An update number on an axis: "800", "1.2k", "3M". */
export function steps(value: number): string {
  if (value >= 1e6) return `${Number((value / 1e6).toPrecision(4))}M`;
  if (value >= 1e4) return `${Number((value / 1e3).toPrecision(4))}k`;
  return String(Number(value.toPrecision(6)));
}

/** A length of time in seconds: "00:41", "1:02:07". */
export function clock(seconds: number): string {
  const whole = Math.max(0, Math.round(seconds));
  const two = (n: number) => String(n).padStart(2, "0");
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${two(minutes)}:${two(whole % 60)}`;
}

function short(exponential: string): string {
  const [digits = "", power = ""] = exponential.split("e");
  const shorter = digits.includes(".") ? digits.replace(/\.?0+$/, "") : digits;
  return `${shorter}e${power.replace("+", "")}`;
}
