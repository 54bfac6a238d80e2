// Draws a run's loss as a small line: heights from 0 to 99 at even distances, and dots for validation.

const NS = "http://www.w3.org/2000/svg";
const WIDTH = 96, HEIGHT = 24, EDGE = 2.5;

export function spark(line: number[], dots: [number, number][]): SVGSVGElement {
  const svg = document.createElementNS(NS, "svg");
  for (const [name, value] of Object.entries({ width: WIDTH, height: HEIGHT, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" })) {
    svg.setAttribute(name, String(value));
  }
  const x = (share: number) => (EDGE + share * (WIDTH - 2 * EDGE)).toFixed(1);
  const y = (height: number) => (HEIGHT - EDGE - (height / 99) * (HEIGHT - 2 * EDGE)).toFixed(1);
  if (line.length > 0) {
    const path = document.createElementNS(NS, "polyline");
    path.setAttribute("points", line.map((height, i) => `${x(line.length > 1 ? i / (line.length - 1) : 1)},${y(height)}`).join(" "));
    svg.append(path);
  }
  for (const [across, height] of dots) {
    const dot = document.createElementNS(NS, "circle");
    for (const [name, value] of Object.entries({ cx: x(across / 99), cy: y(height), r: "1.8" })) dot.setAttribute(name, value);
    svg.append(dot);
  }
  return svg;
}
