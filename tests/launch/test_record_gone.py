"""A run's folder that disappears while its job runs is an error of the job, which is said at once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.problems import bench, labelled, plain_net, sgd
from tests.waiting import wait_for
from workbench.events import Message, RunEnded
from workbench.runs.record.event_log import RecordGone

pytestmark = pytest.mark.usefixtures("one_thread")

WAYS: dict[str, Callable[[Path], object]] = {
    "its folder is deleted": shutil.rmtree,
    "the folder of all runs is deleted": lambda run: shutil.rmtree(run.parent),
    "the root is moved": lambda run: run.parents[1].rename(run.parents[1].with_name("moved")),
    "its record alone is deleted": lambda run: (run / "metrics.jsonl").unlink(),
    "another one has its place": lambda run: (
        shutil.rmtree(run),
        run.mkdir(),
        (run / "metrics.jsonl").touch(),
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_job_fails_and_nothing_is_made_again(tmp_path: Path, way: str) -> None:
    root = tmp_path / "root"
    with bench(plain_net(), labelled(), root, sgd, max_epochs=100_000) as made:
        heard: list[Any] = []
        made.subscribe(heard.append)
        job = made.fit(checkpoint_every=5)
        wait_for(lambda: job.updates > 5)
        run = root / "runs" / job.id
        WAYS[way](run)
        stays = run.is_dir()
        with pytest.raises(
            RecordGone,
            match=rf"record of 0001-fit has disappeared: .*{job.id} was deleted or moved",
        ):
            job.result()
        before = job.updates
        assert job.status == "failed"
        assert job.updates > 5
        assert any(
            event.level == "error" and "disappeared" in event.text
            for event in heard
            if isinstance(event, Message)
        )
        assert [event.status for event in heard if isinstance(event, RunEnded)] == ["failed"]
        assert stays or not run.exists()
        assert made.fit(max_epochs=1).result().status == "finished"
        assert job.updates == before


def test_a_search_fails(tmp_path: Path) -> None:
    with bench(plain_net(), labelled(), tmp_path, sgd) as made:
        job = made.find_lr(num_training=10_000, early_stop_threshold=None)
        wait_for(lambda: len(job.events) > 3)
        shutil.rmtree(tmp_path / "runs")
        with pytest.raises(RecordGone, match="0001-find_lr has disappeared"):
            job.result()
