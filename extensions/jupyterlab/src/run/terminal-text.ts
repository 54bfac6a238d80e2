// Makes plain text of what a process printed for a terminal.

// CSI and OSC sequences, and the other escapes of two characters.
const ESCAPES = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])/g;

/** The text without colours; of a line that was written over by a carriage return (a progress bar), what was written last. */
export function plainText(text: string): string {
  return text
    .replaceAll(ESCAPES, "")
    .replaceAll("\r\n", "\n")
    .split("\n")
    .map((line) => (line.includes("\r") ? line.split("\r").filter(Boolean).at(-1) ?? "" : line))
    .join("\n");
}
