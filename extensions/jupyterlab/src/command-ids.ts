// The commands of the extension that its parts call of one another, and of which of JupyterLab's lists they are.

/** The domain of the translations. */
export const DOMAIN = "tuning_workbench";

/** The arguments of a command about one run (`Ref`), and of one about several, as a JSON schema. */
export const RUN_ARGS = { type: "object", properties: { root: { type: "string" }, run: { type: "string" } }, required: ["root", "run"] } as const;
export const RUNS_ARGS = { type: "object", properties: { runs: { type: "array", items: RUN_ARGS } }, required: ["runs"] } as const;

export const commandIds = {
  openRun: "tuning-workbench:open-run",
  compareRuns: "tuning-workbench:compare-runs",
  stop: "tuning-workbench:stop-run",
  pause: "tuning-workbench:pause-run",
  resume: "tuning-workbench:resume-run",
  validate: "tuning-workbench:validate-run",
  checkpoint: "tuning-workbench:checkpoint-run",
  annotate: "tuning-workbench:annotate-run",
  copyId: "tuning-workbench:copy-run-id",
  deleteRuns: "tuning-workbench:delete-runs",
  continueRun: "tuning-workbench:continue-run",
  insertSettings: "tuning-workbench:insert-settings",
  exportRun: "tuning-workbench:export-run",
  showPanel: "tuning-workbench:show-panel",
  newNotebook: "tuning-workbench:new-notebook",
} as const;
