"""Checkpoints of which each rank writes its rows: joined for any number of readers, whole or not there, and never a pickle."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.checkpoint import HuggingFaceStorageReader, load

from tests.engine.problems import labelled, noisy_net
from tests.engine.resuming import Fit, settings_of, supervised
from tests.engine.sharded import FSDP
from tests.on_ranks import on_ranks
from workbench.engine.checkpoint import shards
from workbench.engine.checkpoint.files import load_weights, read_state, read_weights
from workbench.events import Message, Saved
from workbench.runs.checkpoints import find, list_checkpoints
from workbench.task.device.dtensor import in_shards
from workbench.task.errors import TaskError

SETTINGS = settings_of(
    batch_size=4, max_epochs=1, checkpoint_every=2, save_top_k=-1, weight_averaging="ema", ema_decay=0.5
)  # fmt: skip


@pytest.fixture(autouse=True)
def _one_thread(one_thread: None) -> None:
    """Sums repeat."""


def task() -> Any:
    return supervised(noisy_net(), train=labelled(40), optimizer=torch.optim.AdamW)


def ranks_fit(folder: Path, world: int = 2, settings: Any = SETTINGS, **options: Any) -> list[Any]:
    def rank() -> Any:
        torch.set_num_threads(1)
        os.environ.update(FSDP)
        fit = Fit(task(), settings, folder, **options)
        whole = {
            name: value.full_tensor() if in_shards(value) else value
            for name, value in fit.session.task.model.state_dict().items()
        }
        return fit.said, [saved.name for saved in fit.saved], fit.rows(), whole

    return on_ranks(world, rank)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor]]:
    """A run of two ranks, and the weights at its end."""
    folder = tmp_path_factory.mktemp("run")
    (_, names, _, weights), _ = ranks_fit(folder)
    assert names == ["00000002", "00000004", "00000005-end"]
    return folder, weights


@pytest.fixture
def point(written: tuple[Path, Any], tmp_path: Path) -> Path:
    """A copy of its checkpoint of the second update, to be damaged."""
    folder = tmp_path / "run"
    shutil.copytree(written[0], folder)
    return find(folder, 2).path


def test_each_rank_writes_its_rows_and_anyone_reads_the_whole(written: Any) -> None:
    folder, weights = written
    for checkpoint in list_checkpoints(folder):
        sizes = {file.name: file.stat().st_size for file in checkpoint.path.iterdir()}
        assert sorted(sizes) == [
            "info.json", "model-shard-00001-of-00002.safetensors", "model-shard-00002-of-00002.safetensors",
            "state-shard-00001-of-00002.safetensors", "state-shard-00002-of-00002.safetensors", "state.pt",
        ]  # fmt: skip
    end = find(folder, "last").path
    torch.testing.assert_close(
        read_weights(end / "model.safetensors"), read_state(end)["weights"], rtol=0, atol=0
    )
    net = noisy_net()
    load_weights(net, end / "model.safetensors")
    torch.testing.assert_close(dict(net.state_dict()), weights, rtol=0, atol=0)
    state = read_state(end)
    (optimizer,) = state["optimizers"]
    for number, (name, parameter) in enumerate(net.named_parameters()):
        assert optimizer["state"]["state"][number]["exp_avg"].shape == parameter.shape
        assert state["raw"][name].shape == parameter.shape  # of training; the model has the average
        assert not torch.equal(state["raw"][name], parameter)


def test_torch_reads_the_folder_too(written: Any) -> None:
    end = find(written[0], "last").path
    expected = read_weights(end / "model.safetensors")
    read = {name: torch.empty_like(value) for name, value in expected.items()}
    load(read, storage_reader=HuggingFaceStorageReader(str(end)), no_dist=True)
    torch.testing.assert_close(read, expected, rtol=0, atol=0)


@pytest.mark.parametrize("world", [3, 1])
def test_other_numbers_of_ranks_go_on(world: int, written: Any, tmp_path: Path) -> None:
    """Three ranks cannot divide the rows evenly."""
    end = find(written[0], "last").path
    longer = SETTINGS.replace(max_epochs=2, batch_size=8 // world)
    whole = Fit(task(), longer.replace(batch_size=8), tmp_path / "one", state=end)
    (said, names, _, weights), *_ = ranks_fit(tmp_path / "ranks", world, longer, state=end)
    assert any(f"{world} rank" in text or "1 process" in text for text in said)
    assert names
    stored = read_state(find(tmp_path / "ranks", "last").path)
    torch.testing.assert_close(stored["weights"], weights, rtol=0, atol=0)
    if world == 1:  # as a process with whole weights does
        torch.testing.assert_close(stored["raw"], read_state(whole.checkpoints[-1].path)["raw"])


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    """The first one is not written before all updates are taken; it has the weights of its own moment."""

    def rank() -> Any:
        torch.set_num_threads(1)
        os.environ.update(FSDP)
        write, later, steps = shards.save_file, threading.Event(), []

        def late(*args: Any, **options: Any) -> None:
            later.wait(60)
            write(*args, **options)

        def loss(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            steps.append(len(steps))
            if len(steps) == 5:
                later.set()
            return F.cross_entropy(output, y)

        shards.save_file = late
        settings = SETTINGS.replace(checkpoint_every=3, weight_averaging=None)
        whole = Fit(
            supervised(noisy_net(), train=labelled(40), loss=loss, optimizer=torch.optim.AdamW),
            settings, tmp_path,
        )  # fmt: skip
        shards.save_file = write
        rest = Fit(task(), settings, state=find(tmp_path, 3).path)
        assert rest.rows() == whole.rows(3)
        assert len(rest.rows()) == 2
        return [
            type(event).__name__ for event in whole.events if isinstance(event, Saved | Message)
        ]

    first, other = on_ranks(2, rank)
    assert first.count("Saved") == 2
    assert "Saved" not in other


def test_a_rank_that_cannot_write_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    def rank() -> Any:
        torch.set_num_threads(1)
        os.environ.update(FSDP)
        write, count = shards.save_file, [0]

        def full(*args: Any, **options: Any) -> None:
            count[0] += 1
            if os.environ["RANK"] == "1" and count[0] == 4:  # the state of the second one
                raise OSError(28, "No space left on device")
            write(*args, **options)

        shards.save_file = full
        fit = Fit(task(), SETTINGS, tmp_path)
        return fit.said, [saved.step for saved in fit.saved]

    (said, saved), _ = on_ranks(2, rank)
    assert saved == [2, 5]
    (text,) = [text for text in said if "no checkpoint was written" in text]
    assert "at update 4 (rank 1: " in text
    assert "No space left" in text
    assert [one.step for one in list_checkpoints(tmp_path)] == [2, 5]
    assert not list((tmp_path / "checkpoints").glob(".*"))


def test_a_rank_that_is_killed_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    def rank() -> Any:
        torch.set_num_threads(1)
        os.environ.update(FSDP)
        write, count = shards.save_file, [0]

        def dies(*args: Any, **options: Any) -> None:
            count[0] += 1
            if os.environ["RANK"] == "1" and count[0] == 4:
                os._exit(9)
            write(*args, **options)

        shards.save_file = dies
        return Fit(task(), SETTINGS, tmp_path)

    with pytest.raises(Exception):  # noqa: B017 - whatever a collective says
        on_ranks(2, rank)
    (before,) = list_checkpoints(tmp_path)
    assert before.step == 2
    assert Fit(task(), SETTINGS.replace(batch_size=8), tmp_path).saved  # which also cleans up
    assert not list((tmp_path / "checkpoints").glob(".*"))
    assert read_state(before.path)["step"] == 2


def shard(point: Path, name: str = "model", number: int = 2) -> Path:
    return point / f"{name}-shard-0000{number}-of-00002.safetensors"


def renamed(point: Path) -> None:
    """The rows of the first rank twice."""
    shutil.copy(shard(point, number=1), shard(point))


def says(path: Path, info: Any) -> None:
    """Write the shard with this about its rows."""
    text = info if isinstance(info, str) else json.dumps(info)
    save_file(load_file(path), path, {"DCP_SHARDING_INFO": text})


DAMAGE = {
    "missing": (lambda point: shard(point).unlink(), "a shard of the weights is missing: .*00002-of-00002"),
    "of the state": (lambda point: shard(point, "state").unlink(), "a shard .* is missing: .*state-shard-00002"),
    "all of the state": (lambda point: [shard(point, "state", n).unlink() for n in (1, 2)], "state.safetensors"),
    "cut": (lambda point: os.truncate(shard(point), shard(point).stat().st_size - 8), "cannot be read"),
    "twice": (renamed, "do not make up a tensor"),
    "a link": (lambda point: (shard(point).rename(point / "x"), shard(point).symlink_to(point / "x")), "is a link"),
    "no place": (lambda point: says(shard(point), {}), "do not make up a tensor"),
    "not JSON": (lambda point: says(shard(point), "{" * 9000), "its header is none"),
    "far away": (lambda point: says(shard(point), {"0.weight": {"saved_offsets": [1 << 59, 0]}}), "do not make up a tensor"),
    "negative": (lambda point: says(shard(point), {"0.weight": {"saved_offsets": [-8, 0]}}), "its header is none"),
    "a column": (lambda point: says(shard(point), {"0.weight": {"saved_offsets": [0, 3]}}), "its header is none"),
    "text": (lambda point: says(shard(point), {"0.weight": {"saved_offsets": "no"}}), "its header is none"),
    "a list": (lambda point: says(shard(point), [1]), "its header is none"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_shards_that_are_damaged_or_of_others_are_said_to_be(damage: str, point: Path) -> None:
    harm, words = DAMAGE[damage]
    read_state(point)
    harm(point)  # type: ignore[no-untyped-call]
    with pytest.raises((RuntimeError, FileNotFoundError), match=words) as caught:
        read_state(point)
    assert "Take another checkpoint" in str(caught.value) or damage == "all of the state"


def test_shards_of_another_model_are_refused(written: Any) -> None:
    end = find(written[0], "last").path
    with pytest.raises(RuntimeError, match="are those of another model"):
        load_weights(nn.Linear(3, 3), end / "model.safetensors")

    def rank() -> None:
        os.environ.update(FSDP)
        Fit(supervised(nn.Linear(6, 3), optimizer=torch.optim.AdamW), SETTINGS, state=end)

    with pytest.raises(TaskError, match="another model or other optimizers"):
        on_ranks(2, rank)
