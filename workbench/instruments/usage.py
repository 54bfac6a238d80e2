"""Measures how busy the machine is: its processor cores, and the device that trains.

How to read it: a GPU far below 100% waits, mostly for data (`run.time_spent` says for what). Cores
near 100% are what it waits for: fewer transforms for each sample, or a faster storage, help then,
and more loader workers do not.
Source: psutil.cpu_percent, NVIDIA's and AMD's management libraries by torch.cuda.utilization.
"""

from __future__ import annotations

import psutil
import torch


class Usage:
    """Looks at the machine from time to time. Make it, and call it, in one thread."""

    def __init__(self, device: torch.device) -> None:
        self._gpu = device if device.type == "cuda" else None
        psutil.cpu_percent()  # later ones count from here

    def look(self) -> tuple[float, float | None]:
        """Two shares from 0 to 1 since the last look: of all cores of the machine, by whatever runs
        on them, and the time in which the GPU computed (about a second; None: no GPU, or the
        library that knows it, nvidia-ml-py or amdsmi, is not installed).
        """
        return psutil.cpu_percent() / 100, self._device_share()

    def _device_share(self) -> float | None:
        if self._gpu is not None:
            try:
                return torch.cuda.utilization(self._gpu) / 100
            except Exception:  # noqa: BLE001 - not installed, or a virtual GPU that does not tell
                self._gpu = None
        return None
