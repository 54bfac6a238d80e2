// Reads what a person wrote about a run.

export interface Edited {
  name: string;
  tags: string[];
  notes: string;
}

/** The tags in a text, separated by commas. */
export function tagsIn(text: string): string[] {
  return text.split(",").map((tag) => tag.trim()).filter(Boolean);
}

/** What differs between two states of the form. */
export function changesOf(before: Edited, after: Edited): Partial<Edited> {
  const changed = (Object.keys(after) as (keyof Edited)[]).filter((name) => JSON.stringify(after[name]) !== JSON.stringify(before[name]));
  return Object.fromEntries(changed.map((name) => [name, after[name]]));
}
