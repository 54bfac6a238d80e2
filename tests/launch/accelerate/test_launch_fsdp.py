"""A fit under `accelerate launch` with a config that says FSDP, on two CPU processes; and the command for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from tests.engine.problems import bench, labelled, plain_net
from tests.launch.accelerate.test_command import CONFIG, default, planned, understood  # noqa: F401
from workbench.export.errors import NotStandAlone
from workbench.settings import SettingsError

FSDP: dict[str, Any] = {
    **CONFIG, "distributed_type": "FSDP", "num_machines": 1, "num_processes": 2, "mixed_precision": "no",
    "fsdp_config": {
        "fsdp_version": 1, "fsdp_sharding_strategy": "FULL_SHARD", "fsdp_auto_wrap_policy": "SIZE_BASED_WRAP", "fsdp_min_num_params": 20,
        "fsdp_state_dict_type": "FULL_STATE_DICT", "fsdp_sync_module_states": True, "fsdp_use_orig_params": False,
        "fsdp_cpu_ram_efficient_loading": False,
    },
}  # fmt: skip


def test_the_config_says_fsdp(default: Path) -> None:  # noqa: F811
    default.write_text(yaml.safe_dump(FSDP))
    found = planned()
    given = understood(found)
    assert (given.use_fsdp, given.multi_gpu, given.cpu, given.num_processes) == (
        True,
        False,
        False,
        2,
    )
    assert (given.fsdp_min_num_params, given.fsdp_auto_wrap_policy) == (20, "SIZE_BASED_WRAP")
    assert found.environment()["WORKBENCH_SHARDS"] == "FSDP"
    assert found.environment()["MALLOC_MMAP_THRESHOLD_"] == "1048576"
    for words in (
        "FSDP 1",
        "fsdp_state_dict_type='FULL_STATE_DICT'",
        "fsdp_use_orig_params=False",
        "fsdp_cpu_ram_efficient_loading=False",
    ):
        assert any(words in note for note in found.notes), words
    assert not any("fsdp_sync_module_states" in note for note in found.notes)
    with pytest.raises(SettingsError, match="take 'bf16-mixed'"):
        planned(precision="16-mixed")


def test_what_is_given_says_fsdp_and_what_is_none_of_it() -> None:
    found = planned(
        devices=2, launch={"use_fsdp": True, "fsdp_version": 2, "fsdp_reshard_after_forward": True}
    )
    given = understood(found)
    assert (given.use_fsdp, given.fsdp_version, given.fsdp_reshard_after_forward) == (
        True,
        "2",
        "true",
    )
    assert found.notes == ()
    for options in (
        {"devices": 1, "launch": {"use_fsdp": True}},
        {"devices": 2, "launch": {"use_fsdp": True, "fsdp_sharding_strategy": "NO_SHARD"}},
    ):
        found = planned(**options)
        assert not understood(found).use_fsdp
        assert found.shards is None
        assert "the weights are not sharded" in found.notes[0]


@pytest.mark.usefixtures("forked_ranks")
def test_a_fit_and_its_weights_come_back_whole(tmp_path: Path) -> None:
    config = tmp_path / "fsdp.yaml"
    config.write_text(yaml.safe_dump(FSDP))
    data, launch = labelled(40), {"config_file": str(config)}
    made, alone = (
        bench(plain_net(), data, tmp_path / "two"),
        bench(plain_net(), data, tmp_path / "one"),
    )
    run = made.fit(
        strategy="launch", launch=launch, batch_size=4, max_epochs=2, gradient_clip_val=0.5
    ).result()
    expected = alone.fit(
        strategy="thread", devices=1, batch_size=8, max_epochs=2, gradient_clip_val=0.5
    ).result()
    assert run.status == "finished"
    np.testing.assert_allclose(run.history["loss"], expected.history["loss"], rtol=1e-4)
    np.testing.assert_allclose(run.history["grad_norm"], expected.history["grad_norm"], rtol=1e-4)
    for mine, theirs in zip(
        made._task.model.parameters(), alone._task.model.parameters(), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
    said = [event.text for event in run.events if type(event).__name__ == "Message"]
    assert any(
        "are sharded over 2 ranks, and weights become whole in 3 units" in text for text in said
    )
    assert any("fsdp_state_dict_type" in text for text in said)
    with pytest.raises(NotStandAlone, match="sharded its weights"):
        made.script(format="script")
    files = {file.name for file in (run.folder / "checkpoints").rglob("*.safetensors")}
    assert files == {
        f"{name}-shard-0000{number}-of-00002.safetensors"
        for name in ("model", "state", "start") for number in (1, 2)
    }  # fmt: skip
    other = bench(plain_net(seed=5), data, tmp_path / "two")
    for which, model in (("start", plain_net()), ("last", made._task.model)):
        other.load(run.id, which)
        torch.testing.assert_close(other.model.state_dict(), model.state_dict(), rtol=0, atol=0)
    # in one process
    again = made.fit(
        start=run.id, max_epochs=3, strategy="thread", launch=None, devices=1, batch_size=8
    ).result()
    assert again.step == 15
