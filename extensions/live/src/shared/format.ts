// Formats numbers for people, as workbench/ui/format.py does.

import { texts } from "../texts";

/** A learning rate: "3.2e-3", "0.05", "1e-3". */
export function rate(value: number): string {
  if (!Number.isFinite(value)) return texts.noNumber;
  const size = Math.abs(Number(value.toPrecision(6))); // 0.01 as float32 is a little less
  if (value === 0 || (size >= 0.01 && size < 100)) return String(Number(value.toPrecision(3)));
  return short(value.toExponential(2));
}

/** A loss or a norm, four digits at most. */
export function number(value: number): string {
  if (!Number.isFinite(value)) return texts.noNumber;
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

/** So many a second: "7.6", "1230", "12.3 k". */
export function pace(value: number): string {
  return scaled(value, [[1e9, 1e9, " G"], [1e6, 1e6, " M"], [1e4, 1e3, " k"], [0, 1, ""]]);
}

/** Bytes: "42.6 MB". */
export function bytes(value: number): string {
  return scaled(value, [[1e9, 1e9, " GB"], [1e6, 1e6, " MB"], [1e3, 1e3, " kB"], [0, 1, " B"]]);
}

/** Three digits in the largest unit that fits; as workbench/ui/format.py has it. */
function scaled(value: number, units: [from: number, size: number, unit: string][]): string {
  if (!Number.isFinite(value)) return texts.noNumber;
  const short = Number(value.toPrecision(3));
  const [, size, unit] = units.find(([least]) => short >= least) ?? [0, 1, ""];
  return `${Number((short / size).toPrecision(6))}${unit}`;
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
