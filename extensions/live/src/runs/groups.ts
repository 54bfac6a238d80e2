// The body of the table of runs while these are grouped: a row for each value of a column, with means and ranges.

import { el } from "../shared/dom";
import type { RunGroup } from "../data/messages";
import { texts } from "../texts";

const { runs: words } = texts;

/** The rows of these groups. show: called with the filter of a group whose runs are to be listed. */
export function groupRows(column: string, groups: RunGroup[], show: (filter: string) => void): HTMLElement[] {
  return groups.map(({ value, filter, count, cells }) => {
    const row = el("tr", "wb-run-group");
    const name = el("th", "wb-run-name", "", { scope: "row" });
    const open = el("button", "wb-run-open", value || words.noGroup(column), { type: "button", title: words.showGroupTooltip });
    open.disabled = filter === "";
    open.addEventListener("click", () => show(filter));
    name.append(open, el("span", "wb-run-from", words.inGroup(count)));
    row.append(el("td"), name, ...cells.map(statistics), el("td", "wb-run-actions"));
    return row;
  });
}

/** A mean, with its range below it. */
function statistics(text: string): HTMLElement {
  const [mean = "", range = ""] = text.split(" (");
  const cell = el("td", "wb-run-number", mean);
  if (range) cell.append(el("span", "wb-run-from", range.replace(")", "")));
  return cell;
}
