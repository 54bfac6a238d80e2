// A click on a plot selects the trial whose mark is nearest.

import type uPlot from "uplot";

export interface Spot {
  x: number;
  y: number;
  trial: number;
}

const REACH = 24; // pixels
const STILL = 4; // pixels that a mouse may move within a click: further, it zooms

export function spotsOf(x: number[], y: (number | null)[], trial: number): Spot[] {
  return x.flatMap((at, i) => (y[i] == null ? [] : [{ x: at, y: y[i] as number, trial }]));
}

export function nearest(plot: uPlot, spots: () => Spot[], choose: (trial: number) => void): void {
  let from: [number, number] = [0, 0];
  plot.over.addEventListener("pointerdown", (event) => (from = [event.clientX, event.clientY]));
  plot.over.addEventListener("click", (event) => {
    if (Math.hypot(event.clientX - from[0], event.clientY - from[1]) > STILL) return;
    const box = plot.over.getBoundingClientRect();
    const [left, top] = [event.clientX - box.left, event.clientY - box.top];
    let [closest, reach]: [number | null, number] = [null, REACH];
    for (const { x, y, trial } of spots()) {
      const distance = Math.hypot(plot.valToPos(x, "x") - left, plot.valToPos(y, "y") - top);
      if (distance < reach) [closest, reach] = [trial, distance];
    }
    if (closest !== null) choose(closest);
  });
}
