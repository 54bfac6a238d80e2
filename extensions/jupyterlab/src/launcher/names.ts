// Names of new notebooks.

/** The name of a new notebook in a folder that has these files: "own-data.ipynb", then "own-data-1.ipynb". */
export function freeName(stem: string, taken: readonly string[]): string {
  for (let i = 0; ; i++) {
    const name = `${stem}${i === 0 ? "" : `-${i}`}.ipynb`;
    if (!taken.includes(name)) return name;
  }
}
