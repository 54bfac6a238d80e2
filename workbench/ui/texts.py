"""Contains every text of the panel that a user reads, except for those of the canvas, which are in
extensions/live/src/texts.ts.

To translate the panel, replace this file: it has constants, and functions that insert numbers and
names into sentences. A function has no docstring, since the text that it returns describes it. The
help of a setting is in `workbench.settings`, a finding of health in `workbench.runs.health`, the
reason of a search in `workbench.tuners`. `tests/ui/test_texts.py` finds texts of the panel that are
elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from workbench.plots.training.changes import SETTING_LABELS
from workbench.units import counted

NO_NUMBER = "–"
NOT_FINITE = "not finite"
OFF, NONE, YES, NO, AUTO = "off", "none", "yes", "no", "auto"
SEPARATOR = " · "


# -- jobs

JOBS = {
    "": "Job",
    "fit": "Training",
    "find_lr": "Learning-rate finder",
    "find_batch_size": "Batch-size finder",
    "find_num_workers": "Loader-worker finder",
    "find_clip_val": "Clip-value finder",
    "find_weight_decay": "Weight-decay finder",
    "find_recipe": "Race of recipes",
    "find_precision": "Precision finder",
    "profile": "Profile",
    "tune": "Tuning",
    "validate": "Validation",
    "test": "Test",
    "predict": "Prediction",
}
STATES = {
    "queued": "queued",
    "running": "running",
    "paused": "paused",
    "finished": "finished",
    "stopped": "stopped",
    "failed": "failed",
}
ANSWERS = {
    "find_lr": "Recommended learning rate",
    "find_batch_size": "Recommended batch size",
    "find_num_workers": "Recommended loader workers",
    "find_clip_val": "Recommended clip value",
    "find_weight_decay": "Recommended weight decay",
    "find_precision": "Recommended precision",
    "find_recipe": "Recommended recipe",
    "check": "All of them, against the present settings",
}
CHIPS = {
    "find_lr": "lr",
    "find_batch_size": "batch",
    "find_num_workers": "workers",
    "find_clip_val": "clip",
    "find_weight_decay": "weight decay",
    "find_precision": "precision",
    "find_recipe": "recipe",
    "study": "study",
}
NOT_BEGUN = "it had not begun"
NO_RATE = "no rate can be trusted here"
NO_SIZE = "no size fits"
FAILED = "failed"
HELD_OUT_LOSS = "held-out loss"


def job_on(job: str, device: str) -> str:
    return f"{job} on {device}."


def job_state(job: str, state: str, result: str = "") -> str:
    return f"{job}: {STATES.get(state, state)}. {result}".strip()


def job_continues(job: str, step: int) -> str:
    return f"{job} continues at update {step}."


def job_failed(job: str) -> str:
    return f"{job} failed"


def job_by_another_process(job: str) -> str:
    return f"{job}, run by another process"


def found_nothing(search: str) -> str:
    return f"{search} found nothing"


def compared(settings: str) -> str:
    return f"compared: {settings}" if settings else "compared: the present settings stay"


def suggestion(rate: str) -> str:
    return f"suggestion {rate}"


def sizes_found(best: int, largest: int | None) -> str:
    return f"best {best}, largest {largest}"


def searches_done(number: int) -> str:
    return counted(number, "search", "searches")


def epoch(number: int, of: int | None) -> str:
    return f"epoch {number}/{of}" if of else f"epoch {number}"


def changed_at(change: str, step: int) -> str:
    return f"{change} at {step}"


def no_such_job(run: str) -> str:
    return f"this bench has no job {run}"


def no_such_study(study: str) -> str:
    return f"this bench has no study {study}"


def as_of(moment: str) -> str:
    return f"as it was at {moment}"


def time_left(duration: str) -> str:
    return f"{duration} left"


def best_now(name: str, value: str) -> str:
    return f"{name} {value}, the best yet"


def best_before(name: str, value: str, best: str, epoch: int) -> str:
    return f"{name} {value}, best {best} at epoch {epoch}"


def updates_per_second(pace: str) -> str:
    return f"{pace} updates/s"


def on_device(device: str) -> str:
    return f"on {device}"


def skipped(updates: int) -> str:
    return f"{counted(updates, 'update')} skipped"


def saved_at(step: int) -> str:
    return f"saved at {step}"


# -- the header

FIND, RACE = "Find", "Race"
FIND_BATCH_SIZE = "Try batch sizes for speed and memory"
FIND_LR = "Sweep the learning rate and watch the loss"
FIND_CLIP = "Measure the gradient norms of 200 updates, and suggest a clip value"
RACE_TOOLTIP = (
    "Sweep, then train four rates around the suggestion for a while: validation batches decide"
)
KEEP = "Keep effective batch"
KEEP_TOOLTIP = "Search with as many samples in an update as now"
FIND_WORKERS = "Try numbers of loader workers for speed"
FIND_PRECISION = "Try precisions for speed, and compare their losses with float32's"
FIND_RECIPE = "Race optimizers, each with a rate and a schedule: held-out batches decide"
FIND_WEIGHT_DECAY = "Train with four values for 200 updates each: held-out batches decide"


FIND_AGAIN = "Find again"
RULES = {"sqrt": "square root", "linear": "in proportion"}


def use_rate(lr: str, rule: str) -> str:
    return f"Use {lr} ({RULES[rule]})"


def keep(samples: str) -> str:
    return f"{KEEP} at {samples}"


def each_of(devices: int) -> str:
    return f"each of {devices}"


def own_rate(rate: str, setting: str) -> str:
    """The rate of an optimizer, and the setting that gives it this rate."""
    return f"{rate} (lr={setting})"


def accumulated(batches: int, size: int) -> str:
    return f"{batches} x {size}"


# -- the run buttons

TRAIN, PAUSE, RESUME, STOP, CONTINUE = "▶ Train", "❚❚ Pause", "▶ Resume", "■ Stop", "▶ Continue"
TRAIN_TOOLTIP = "Train with the settings above"
PAUSE_TOOLTIP = "Wait before the next update"
RESUME_TOOLTIP = "Resume training"
STOP_TOOLTIP = "End at the next update and keep the results so far"
CONTINUE_TOOLTIP = (
    "Continue the last run with its optimizers and its position in the data, and with the settings"
    " changed since"
)
QUEUED, TRAINING, STOPPING = "Queued", "Training…", "Stopping…"
STOPPING_NOW = "Stopping now…"
STOPPING_TOOLTIP = "It ends before its next update. Press again to kill ranks that do not end"
TRAINING_TOOLTIP = "A run is training or queued: start the next one when it has ended"
TUNE = "Tune"
TUNE_TOOLTIP = (
    "Find loader workers, a batch size, a learning rate and a clip value, one after another;"
    " nothing is applied"
)
EXPORT, EXPORT_TOOLTIP = "Export…", "See and write a script that repeats the last run"
VALIDATE, VALIDATE_TOOLTIP = (
    "Validate now",
    "Validate before the next update; the run does not change",
)
CHECKPOINT, CHECKPOINT_TOOLTIP = (
    "Save a checkpoint now",
    "Write one before the next update; it stays as long as the run does",
)
PROFILE, PROFILE_TOOLTIP = (
    "Profile",
    "Measure what limits the speed of updates; nothing changes",
)
APPLY, APPLY_TOOLTIP = (
    "Apply to the run",
    "The running training keeps its own values until you press this",
)
LIVE = {"lr": "lr", "gradient_clip_val": "clip", "accumulate_grad_batches": "accumulation"}


def correct(names: Sequence[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"Train: correct {names[0]}{more}"


def not_valid(names: Sequence[str]) -> str:
    return f"Not valid: {', '.join(names)}"


def correct_first(action: str, names: Sequence[str]) -> str:
    return f"{action}: correct {', '.join(names)} first."


def apply(changes: str) -> str:
    return f"{APPLY}: {changes}"


# -- the user's action, named before its error

ACTIONS = {
    "train": "Train",
    "tune": "Tune",
    "continue": "Continue",
    "rerun": "Rerun",
    "pause": "Pause",
    "stop": "Stop",
    "use": "Use the result",
    "restore": "Restore the settings",
    "runs": "Runs",
    "delete": "Delete",
    "compare": "Compare",
    "export": "Export",
    "show": "Show",
    "canvas": "The canvas",
    "picture": "The picture of this job",
    "find_lr": "Find learning rate",
    "find_batch_size": "Find batch size",
    "find_clip_val": "Find clip value",
    "find_num_workers": "Find loader workers",
    "find_precision": "Find precision",
    "find_weight_decay": "Find weight decay",
    "find_recipe": "Find a recipe",
    "profile": "Profile",
    "use_batch_size": "Use the batch size",
    "use_clip": "Use the clip value",
    "stop_all": "Stop all",
    "write_script": "Write the script",
    "choose_option": "The options of the script",
    "choose_format": "The format of the export",
    "close_script": "Close the script",
    "undo_delete": "Undo the deletion",
    "annotate": "Edit",
    "refresh": "Refresh",
    "monitor": "Monitor",
    "remedy": "Health",
    "measure_ratios": "Measure",
    "histograms": "Measure layers",
}


def failed(action: str, why: str) -> str:
    return f"{action}: {why}"


def show_run(run: str) -> str:
    return f"Show {run}"


# -- notices, settings, the script

MONITOR_MODE_BY_NAME = "by its name"
SCHEDULE = "The learning rate over a run."


def schedule_over(updates: int) -> str:
    return f"The learning rate over a run of {updates:,} updates."


WHOLE_OR_FRACTION = " A whole number counts; one with a point, like 1.0, is a fraction."
DEFAULTS = {
    "optimizer": "the bench's own; or adamw, or {'sgd': {'momentum': 0.9}}",
    "weight_decay": "the optimizer's own",
    "gradient_clip_val": "off",
    "accumulate_grad_batches": "1, or {0: 8, 4: 4}",
    "early_stopping": "none; or val_loss, or EarlyStopping(monitor='val_loss', patience=5)",
    "swa_lrs": "as scheduled",
    "truncated_bptt_steps": "off",
    "find_lr_at": "none, or 0, 5",
    "find_batch_size_at": "none, or 0",
    "val_check_interval": "each epoch (1.0)",
    "compile": "off",
    "max_time": "none, or 00:01:30:00",
    "max_steps": "no limit",
    "check_val_every_n_epoch": "every (1)",
    "checkpoint_every": "epochs 10 min apart",
    "monitor": "val_loss, if any",
    "devices": "auto, or 2, or [0, 2]",
    "launch": "your own config",
}
"""The meaning of an empty box of a setting."""
LAST_RUN = "the last run"
SCRIPT_CUT = "\n# … cut here; the written file is complete.\n"


def off(value: object) -> str:
    return f"off ({value})"


def all_of_it(value: object) -> str:
    return f"all ({value})"


def headless(why: str) -> str:
    return f"This is a script on the workbench, since a stand-alone one is not possible: {why}"


def written(path: str) -> str:
    return f"Written: {path}"


# -- runs

BUSY = "a run is training or queued"
MAY_STILL_RUN = "it may still run: its process cannot be seen from here"
NOT_ENDED = "it has not ended"
NO_CHECKPOINT = "it has no checkpoint"
EARLY_STOPPING = "early stopping"
NO_VALUE = "none"
STATUS, UPDATES, TIME = "status", "updates", "time"
LOSS, VAL, AVERAGED = "loss", "val", "averaged"


def repeating(run: str, again: str) -> str:
    return f"{again} repeats {run}, when no other job runs."


def repeated(again: str, text: str) -> str:
    return f"{again} {text}"


def another_model(model: str) -> str:
    return f"it is a run of another model ({model})"


def or_beyond(value: str, sign: str) -> str:
    return f"{sign} {value}"


def at_its_end(end: str) -> str:
    return f"it has come to its end ({end}): enter more epochs above to continue it"


def last_value(metric: str, value: str) -> str:
    return f"last {metric} {value}"


# -- the plots of a run

FIRST_RATIOS = "The first update ratios come with the next updates."
NO_RATIOS_YET = "This run does not measure update ratios yet."
RATIOS_NEXT = "The next run measures update ratios."
NO_RATIOS = "The last run did not measure update ratios."
LAST_SECONDS, WHOLE_RUN = "Time of the last seconds", "Time of the whole run"
RESUMED = "resumed"


def changed(name: str, value: str) -> str:
    return f"{SETTING_LABELS.get(name, name)}→{value}"


def optimizer(number: str) -> str:
    return f"optimizer {number}"


def broken(of_gradient: bool, step: int, layer: str) -> str:
    where = f", first in {layer}" if layer else ""
    return f"{'gradient' if of_gradient else 'loss'} not finite at update {step}{where}"


def norms(p50: str, p95: str) -> str:
    return f"p50 {p50} · p95 {p95}"


def no_clipping(norms: str) -> str:
    return f"no clipping · {norms}"


def clip_not_drawn(by_norm: bool, norms: str) -> str:
    return (
        f"the clip value limits {'the 2-norm' if by_norm else 'each entry'} and is not drawn among"
        f" these norms · {norms}"
    )


def clipped(share: str, of: int, norms: str) -> str:
    return f"clipped {share} of the last {of} updates · {norms}"


def would_clip(value: str, share: str, updates: int) -> str:
    return f" · {value} would cut {share} of the {updates:,} updates"


# -- the searches

FREE = "free when it was tried"
NO_REASON = "no reason was given"


def room(memory: str, source: str) -> str:
    return f"{memory} ({source})"


def whole_device(memory: str) -> str:
    return f"{memory} (all of the device)"


def ranks_together(ranks: int) -> str:
    return f" · {ranks} ranks together: samples/s of all, the peak of the fullest"


def one_rank(ranks: int, error: str) -> str:
    return f"one of {ranks} ranks: {error}"


def sweep(run: str, number: int) -> str:
    return f"{run}, sweep {number}"


def group_alone(group: int) -> str:
    return f"Parameter group {group} alone: the others kept their rates."


def first_optimizer(count: int) -> str:
    return (
        f"Optimizer 0 of {count}. The setting lr is its rate; the rates of the others change in"
        " proportion."
    )


def other_optimizer(number: int, count: int, ratio: str) -> str:
    return (
        f"Optimizer {number} of {count}. The setting lr is the rate of optimizer 0; all rates"
        f" change in proportion, and this one is {ratio} times lr."
    )


# -- errors of the panel itself

NOT_BUILT = (
    "The live canvas is not built. In a source checkout: cd extensions/live && npm ci && npm run"
    " build"
)


def not_training(job: str) -> str:
    return f"{job} does not train now: nothing in it can be changed."


# -- a run as an HTML file

PAGE = (
    "# One file, which opens in a browser without a server or Python: the plots of this panel,\n"
    "# the results and the settings of the run. What you watched is in it, too."
)


def no_page(path: str) -> str:
    return f"{path} is no name of a page: give one that ends in .html."


RESULTS, CHOSEN_SETTINGS, ALL_SETTINGS = "Results", "Chosen settings", "All settings"
TRIALS_AND_RUNS, OF_ALL_TRIALS = "All trials with their runs", "Settings of all trials"
LENGTH_AND_VERSIONS = "Length and versions"
LIVE_CHANGES, MODEL_AND_VERSIONS = "Changed while it trained", "Model and versions"
LAST, BEST, VALUE, UPDATE, SETTING = "last", "best", "value", "update", "setting"
TAG_IN_BUNDLE = "live.js has a tag in it that would end its script element."


def no_record(run: str) -> str:
    return f"run {run!r} has no record to export: it was a dry run, or it is deleted."


def not_ours(file: Path) -> str:
    return f"{file} was not written by export, and is not overwritten: give another name."


def not_drawn(run: str, count: int) -> str:
    return f"{count} events of {run} cannot be drawn: its record is damaged. The page has the rest."


def layers_left_out(count: int) -> str:
    return f"{count} more layers were not measured: pick rows of the map." if count else ""


SAMPLES_GONE = "Its file is gone: a run keeps 64 MB of samples, or its folder was moved."


def samples_unreadable(why: str) -> str:
    return f"Its file cannot be read: {why}."


def not_of_attached(message: object) -> str:
    return f"{message!r} is not available for a job of another process."


def unknown_request(message: object) -> str:
    return f"the canvas sent the request {message!r}, which the panel does not know."


def unknown_call(code: str, known: Sequence[str]) -> str:
    return f"The view cannot run {code!r:.200}: it only runs calls of {', '.join(known)}."


def unknown_remedy(code: str, known: Sequence[str]) -> str:
    return f"The panel cannot run {code!r:.200}: it only runs calls of {', '.join(known)}."


def still_goes(jobs: str) -> str:
    return (
        f"Running or queued on a bench that no cell shows any more: {jobs}. The jobs of this bench"
        " wait until they have ended."
    )


def stop_jobs(jobs: str) -> str:
    return f"Stop {jobs}"


PANEL_BACK = "Run the cell to have the panel back."


def panel_title(facts: str) -> str:
    return f"Tuning Workbench · {facts}"


def trained(count: str) -> str:
    return f" ({count} trained)"


def parameters(count: str, trained: str, size: str) -> str:
    return f"{count} parameters{trained} · {size}"
