// Marks on the heat map where a value was first not finite.

import type { Frame } from "./heat-map-cells";
import { across } from "./heat-map-labels";
import type { Rows } from "../data/table";
import type { Palette } from "../shared/theme";
import type { Row, State } from "../data/messages";

/** A pointer from above to the update, and a ring round the layer, where one is known and has a row. */
export function markNonFinite(ctx: CanvasRenderingContext2D, frame: Frame, rows: Rows, names: Row[], broken: State["broken"], { bad, paper }: Palette): void {
  if (!broken) return;
  const x = Math.min(Math.max(across(frame, rows, broken.step), frame.left), frame.left + frame.width);
  ctx.fillStyle = bad;
  ctx.strokeStyle = paper;
  ctx.lineWidth = 1.5;
  ctx.beginPath();
  ctx.moveTo(x - 5, frame.top - 1);
  ctx.lineTo(x + 5, frame.top - 1);
  ctx.lineTo(x, frame.top + 7);
  ctx.closePath();
  ctx.stroke();
  ctx.fill();
  const { place } = broken;
  const layer = place === null ? -1 : names.findIndex(([, first, end]) => first <= place && place < end);
  if (layer < 0) return;
  for (const [wide, colour] of [[4, paper], [2, bad]] as const) {
    ctx.lineWidth = wide;
    ctx.strokeStyle = colour;
    ctx.beginPath();
    ctx.arc(x, frame.top + (layer + 0.5) * (frame.height / names.length), 6, 0, 2 * Math.PI);
    ctx.stroke();
  }
}
