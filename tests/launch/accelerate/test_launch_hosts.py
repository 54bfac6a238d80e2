"""Two machines, as two network namespaces that a cable joins: neither sees the other's loopback."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests import warm
from tests.engine.problems import bench, labelled, plain_net
from tests.launch.launched import ended, kill_all_of
from tests.waiting import wait_for
from workbench.events import Message
from workbench.runs.run import Run

pytestmark = pytest.mark.usefixtures("one_thread", "forked_ranks")

CODE = textwrap.dedent("""
    import os, sys
    from tests.engine.problems import bench, labelled, plain_net
    import torch
    from torch.nn import functional as F

    def loss(output, y):
        with open(f"{sys.argv[2]}/where-{os.environ.get('RANK', 'kernel')}", "w") as file:
            file.write(os.readlink("/proc/self/ns/net"))
        return F.cross_entropy(output, y)

    torch.set_num_threads(1)
    made = bench(plain_net(), labelled(96), sys.argv[1], loss=loss, max_epochs=2)
    job = made.fit(strategy="launch", num_nodes=2, devices=1, launch={"main_process_ip": "10.77.0.1", "main_process_port": 29611})
    print(job.result().status)
""")


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def hosts() -> Iterator[tuple[str, str]]:
    """The names of two namespaces; 10.77.0.1 and 10.77.0.2 are the ends of what joins them."""
    if sys.platform != "linux" or shutil.which("ip") is None:
        pytest.skip("there is no `ip` here, which makes network namespaces")
    one, two = f"wb{os.getpid()}a", f"wb{os.getpid()}b"
    try:
        try:
            for name in (one, two):
                ip("netns", "add", name)
            ip(
                "link",
                "add",
                "wbv0",
                "netns",
                one,
                "type",
                "veth",
                "peer",
                "name",
                "wbv1",
                "netns",
                two,
            )
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces are forbidden here: {error.stderr.strip()}")
        for name, end, address in ((one, "wbv0", "10.77.0.1/24"), (two, "wbv1", "10.77.0.2/24")):
            ip("-n", name, "addr", "add", address, "dev", end)
            for link in ("lo", end):
                ip("-n", name, "link", "set", link, "up")
        yield one, two
    finally:
        for name in (one, two):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@contextlib.contextmanager
def inside(host: str, *command: str) -> Iterator[subprocess.Popen[str]]:
    """A process on this host, gone at the end with all that it started."""
    process = subprocess.Popen(
        ["ip", "netns", "exec", host, *command],
        env=warm.environment(),
        start_new_session=True,
        text=True,
    )
    try:
        yield process
    finally:
        kill_all_of(process)


def received(host: str, link: str) -> int:
    (found,) = json.loads(ip("-n", host, "-s", "-j", "link", "show", link))
    return int(found["stats64"]["rx"]["bytes"])


def test_two_hosts_train_as_one_process(hosts: tuple[str, str], tmp_path: Path) -> None:
    one, two = hosts
    root = tmp_path / "wb"
    folder = root / "runs" / "0001-fit"

    def told() -> bool:  # the script is whole then
        return (folder / "metrics.jsonl").exists() and "waits for its other machines" in (
            folder / "metrics.jsonl"
        ).read_text()

    with ended(root), inside(one, sys.executable, "-c", CODE, str(root), str(tmp_path)) as asked:
        wait_for(lambda: told() or asked.poll() is not None)
        with inside(two, "sh", str(folder / "launch.sh"), "1") as second:
            assert asked.wait(250) == 0
            assert second.wait(100) == 0
    run = Run.open(folder)
    assert any("launch.sh" in event.text for event in run.events if isinstance(event, Message))
    expected = (
        bench(plain_net(), labelled(96), tmp_path, max_epochs=2, batch_size=16)
        .fit(strategy="thread")
        .result()
    )
    assert (run.status, run.step) == ("finished", 12)
    np.testing.assert_allclose(run.history["loss"], expected.history["loss"], rtol=1e-5)
    # Each rank was on a host of its own, and every update's gradients went over the cable.
    places = {(tmp_path / f"where-{rank}").read_text() for rank in (0, 1)}
    assert len(places) == 2
    assert os.readlink("/proc/self/ns/net") not in places
    gradients = 4 * sum(p.numel() for p in plain_net().parameters())
    for host, link in ((one, "wbv0"), (two, "wbv1")):
        assert received(host, link) > run.step * gradients / 2
