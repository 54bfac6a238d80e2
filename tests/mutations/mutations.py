"""Lists small faults that the suite must catch: a sign, a skipped restore, a dropped flush.

Each replaces one piece of text, which the file has exactly once (`test_mutations.py` sees to that), and names the tests
that are to fail.
"""

from __future__ import annotations

from typing import NamedTuple


class Mutation(NamedTuple):
    """One fault: in this file the text `old` becomes `new`, and one of the tests fails."""

    file: str
    old: str
    new: str
    tests: str


MUTATIONS = (
    # -- techniques
    Mutation(
        "techniques/accumulation.py",
        "return [weight / total for weight in weights]",
        "return [1 / len(weights) for weight in weights]",
        "tests/engine/twins/test_windows_are_one_batch.py",
    ),
    Mutation(
        "techniques/clipping.py",
        "limit / (total + 1e-6)",
        "limit / (total - 1e-6)",
        "tests/engine/twins/test_techniques_against_twin.py",
    ),
    Mutation(
        "techniques/schedules.py",
        "return (update + 1) / self.warmup",
        "return update / self.warmup",
        "tests/techniques",
    ),
    Mutation(
        "techniques/schedules.py",
        "0.5 * (1.0 + math.cos(",
        "0.5 * (1.0 - math.cos(",
        "tests/techniques",
    ),
    Mutation(
        "techniques/stopping.py",
        "step >= (settings.min_steps or 0) and epoch",
        "step >= (settings.min_steps or 0) or epoch",
        "tests/techniques",
    ),
    Mutation(
        "techniques/averaging.py",
        "return epoch >= swa_first_epoch(settings)",
        "return epoch > swa_first_epoch(settings)",
        "tests/techniques tests/engine/optim",
    ),
    Mutation(
        "techniques/tbptt.py",
        "value.detach() if isinstance(value, Tensor)",
        "value if isinstance(value, Tensor)",
        "tests/techniques tests/engine/twins/test_sequences_against_twin.py",
    ),
    # -- the loop and the step
    Mutation(
        "engine/loop.py",
        "            self.recorder.flush()\n",
        "            pass\n",
        "tests/engine/metrics",
    ),
    Mutation(
        "engine/loop.py",
        "        self.recorder.flush(wait=True)\n",
        "        self.recorder.flush()\n",
        "tests/engine/twins/test_fit_against_twin.py tests/engine/validation tests/engine/metrics",
    ),
    Mutation(
        "engine/loop.py",
        "                session.optimizers.step_epoch_schedules(state, session.hooks)\n",
        "",
        "tests/engine/optim",
    ),
    Mutation(
        "engine/loop.py",
        "            checkpoints.mark()\n",
        "            pass\n",
        "tests/engine/checkpoint",
    ),
    Mutation(
        "engine/loop.py",
        "size, self._size = self._size, self._wanted()",
        "size = self._wanted()",
        "tests/engine/test_live_accumulation.py",
    ),
    Mutation(
        "engine/step.py",
        'opt.step_schedules("step", opt.steps, session.hooks, batches)',
        "pass",
        "tests/engine/optim",
    ),
    Mutation(
        "engine/step.py",
        "        opt.put_held_lrs()\n",
        "        pass\n",
        "tests/engine/test_step.py",
    ),
    Mutation(
        "engine/optim/closure_step.py",
        "        undo()  # the optimizer",
        "        pass  # the optimizer",
        "tests/engine/test_nonfinite.py",
    ),
    Mutation(
        "techniques/precision.py",
        "return not overflowed",
        "return True",
        "tests/techniques/test_precision.py tests/engine/test_nonfinite.py",
    ),
    Mutation(
        "engine/backward.py", "            if first:\n", "            if True:\n", "tests/lightning"
    ),
    Mutation(
        "engine/hooks/called.py",
        "            self.cut_short = True\n",
        "",
        "tests/engine/test_step.py tests/lightning",
    ),
    Mutation(
        "engine/window.py",
        "self.loss + weighted_loss.detach()",
        "self.loss - weighted_loss.detach()",
        "tests/engine/twins/test_windows_are_one_batch.py",
    ),
    Mutation(
        "engine/distributed/single.py",
        "if window_loss.some_left_out:",
        "if not window_loss.some_left_out:",
        "tests/engine/twins/test_windows_are_one_batch.py",
    ),
    Mutation(
        "engine/distributed/ddp.py",
        "(self._sync.weight / total)",
        "(total / self._sync.weight)",
        "tests/engine/distributed",
    ),
    Mutation(
        "engine/nonfinite.py",
        "        session.replay.restore_buffers()\n",
        "",
        "tests/engine/test_nonfinite.py",
    ),
    # -- state that must come back
    Mutation(
        "engine/snapshot.py",
        "            random.restore()\n",
        "",
        "tests/launch/search/test_scheduled_searches.py",
    ),
    Mutation(
        "engine/snapshot.py",
        "                opt.base_lr, opt.steps = base_lr, steps\n",
        "",
        "tests/engine/test_snapshot.py",
    ),
    Mutation(
        "task/rng.py",
        "            state.restore()\n",
        "            pass\n",
        "tests/tuners/learning_rate/test_lr_finder.py",
    ),
    Mutation(
        "engine/checkpoint/fit_state.py",
        'session.weights.load_gradients(state["gradients"])',
        "pass",
        "tests/engine/checkpoint tests/lightning",
    ),
    Mutation(
        "engine/checkpoint/fit_state.py",
        '    RandomState.from_state(state["random"]).restore()\n',
        "",
        "tests/engine/checkpoint",
    ),
    Mutation(
        "engine/checkpoint/optimizer_state.py",
        'parts.built_in.load_state_dict(state["built_in"]["state"])',
        "pass",
        "tests/engine/checkpoint",
    ),
    Mutation(
        "engine/checkpoint/manager.py",
        "% self._updates == 0",
        "% self._updates == 1",
        "tests/engine/checkpoint/test_manager.py",
    ),
    Mutation(
        "engine/validation/validate.py",
        "            modes.restore()\n",
        "            pass\n",
        "tests/engine/validation",
    ),
    Mutation(
        "engine/metrics/meter.py",
        "        self._paused += seconds\n",
        "        self._paused -= seconds\n",
        "tests/engine/test_control.py tests/launch/test_thread.py",
    ),
    Mutation(
        "engine/data/loaders.py",
        "        if not reading.begun:\n            reading.set_epoch(self.epoch)\n",
        "        if not reading.begun:\n            pass\n",
        "tests/engine/data/test_set_epoch.py",
    ),
    # -- tuners
    Mutation(
        "tuners/learning_rate/rules.py",
        "at = int(np.argmin(slopes))",
        "at = int(np.argmax(slopes))",
        "tests/tuners/learning_rate/test_lr_suggest.py",
    ),
    Mutation(
        "tuners/batch_size/batch_size_search.py",
        "known = next((t for t in self.trials if t.size == size), None)",
        "known = None",
        "tests/tuners/batch_size/test_batch_search.py",
    ),
    Mutation(
        "tuners/learning_rate/lr_finder.py",
        "smoother.update(loss) if math.isfinite(loss) else loss",
        "loss",
        "tests/tuners/learning_rate/test_lr_finder.py",
    ),
    Mutation(
        "tuners/batch_size/speeds.py",
        "samples_per_second=samples[t.size] / known[t.size][0],",
        "samples_per_second=known[t.size][0] / samples[t.size],",
        "tests/tuners/batch_size/test_speeds.py",
    ),
    # -- export
    Mutation(
        "export/program/main.py",
        "if CHANGES and step in CHANGES:",
        "if CHANGES and step + 1 in CHANGES:",
        "tests/export/program/test_script_live.py",
    ),
    Mutation(
        "export/program/main.py",
        "scaler.unscale_(optimizer)\n",
        "pass\n",
        "tests/export/program/test_script_techniques.py",
    ),
    # -- launch
    Mutation(
        "task/state/held.py",
        "            present.requires_grad_(value)\n",
        "            pass\n",
        "tests/launch/test_module_diff.py",
    ),
    Mutation(
        "task/state/places.py",
        "        delattr(owner, name)\n",
        "        pass\n",
        "tests/task/state/test_kinds.py",
    ),
    Mutation(
        "launch/pool/failures.py",
        "        kind = 1\n",
        "        kind = 0\n",
        "tests/launch/pool/test_failures.py",
    ),
    Mutation(
        "launch/process/fork_server.py",
        "in (signal.SIGINT, *signals.NUMBERS)",
        "in signals.NUMBERS",
        "tests/launch/process/test_child_handle.py",
    ),
    Mutation(
        "launch/start/start_spec.py",
        "if not untouched(job.id):",
        "if untouched(job.id):",
        "tests/launch/start/test_resume_plan.py",
    ),
)
