// Reads the tags that a person wrote.

/** The tags in a text, separated by commas. */
export function tagsIn(text: string): string[] {
  return text.split(",").map((tag) => tag.trim()).filter(Boolean);
}
