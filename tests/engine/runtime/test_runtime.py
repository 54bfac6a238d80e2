"""The accelerator of a job: what the process sees of its making."""

import os

from accelerate.utils import GradientAccumulationPlugin, environment

from workbench.engine.runtime import runtime
from workbench.settings import Settings


def test_other_threads_never_see_an_empty_environment(monkeypatch):
    """accelerate empties `os.environ` for a moment to see the defaults of its options; a fit has none of those that it asks for so."""

    def refused():
        raise AssertionError("os.environ was emptied")

    before = dict(os.environ)
    monkeypatch.setattr(environment, "clear_environment", refused)
    assert runtime.Runtime(Settings.make(accelerator="cpu")).device.type == "cpu"
    assert dict(os.environ) == before


def test_the_options_of_accumulation_are_those_that_accelerate_would_find():
    assert (
        runtime.NoAccumulation(num_steps=1).to_kwargs()
        == GradientAccumulationPlugin(num_steps=1).to_kwargs()
    )
