"""Compares what a script begins with to what the run began with."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Mapping

import torch

from workbench.export.program.constants import CHECKSUMS, FIRST_NUMBERS


class Comparison:
    """The checksums of the run's beginning."""

    def __init__(self, config):
        changed = [
            f.name for f in dataclasses.fields(config) if getattr(config, f.name) != f.default
        ]
        harmless = {"output", "log_file", "tracker"}
        self.left = {kind: list(sums) for kind, sums in CHECKSUMS.items()}
        if set(changed) - harmless:
            self.left.clear()

    def compare(self, what, value):
        """Say at once if the weights or the first batches are not the run's."""
        if self.left.get(what) and checksum(value) != int(self.left[what].pop(0), 16):
            print(
                f"Not the run's {what}: losses will differ. Possible causes:",
                "a file that is missing or has changed, draws without a seed,",
                "other versions of libraries, another CPU.",
            )
            if what != "weights":
                self.left.pop("batches", None)  # what is read next differs too

    def compared(self, batches):
        """The batches, of which the first are compared with the run's."""
        for batch in batches:
            self.compare("batches", batch)
            yield batch


def checksum(value, crc=0):
    """A checksum of a value: of the first numbers of its tensors, and of its other numbers."""
    if isinstance(value, torch.Tensor) and value.numel():
        crc = zlib.crc32(str(tuple(value.shape)).encode(), crc)
        first = value.detach().flatten()[:FIRST_NUMBERS]
        return zlib.crc32(first.cpu().contiguous().view(torch.uint8).numpy().tobytes(), crc)
    if isinstance(value, (int, float)):
        return zlib.crc32(str(value).encode(), crc)
    items = vars(value) if dataclasses.is_dataclass(value) else value
    items = list(items.values()) if isinstance(items, Mapping) else items
    for item in items[:FIRST_NUMBERS] if isinstance(items, (list, tuple)) else ():
        crc = checksum(item, crc)
    return crc
