"""A script of which the ranks differ, fail on all, train alone, and at last fail on one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import workbench as wb

rank = int(os.environ["RANK"])
errors: dict[str, str] = {}


class Loss(nn.Module):
    """A loss that meets a bad sample on some ranks."""

    fails_on: tuple[int, ...] = ()

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if rank in self.fails_on:
            raise ValueError("bad sample")
        return nn.functional.mse_loss(output, target)


def make_bench(outputs: int = 7, **options: Any) -> wb.Workbench:
    torch.manual_seed(0)
    data = torch.randn(64, 8), torch.randn(64, outputs)
    return wb.Workbench(
        nn.Linear(8, outputs), train=data, loss=Loss(), accelerator="cpu", batch_size=4, **options
    )


def attempt(case: str, call: Callable[[], object]) -> None:
    try:
        call()
    except Exception as error:
        errors[case] = f"{type(error).__name__}: {error}"


def main() -> None:
    attempt("pool", lambda: make_bench(strategy="pool"))
    os.environ["ACCELERATE_USE_FSDP"] = "true"
    attempt("sharded", make_bench)
    del os.environ["ACCELERATE_USE_FSDP"]
    attempt("devices", lambda: make_bench(devices=3))
    alone = make_bench(strategy="thread").fit(max_epochs=1).result()
    bench = make_bench()
    attempt("settings", lambda: bench.fit(lr=0.1 * (rank + 1), max_epochs=1).result())
    other = make_bench(outputs=7 + rank)
    attempt("model", lambda: other.fit(max_epochs=1).result())
    Loss.fails_on = (0, 1)
    attempt("all fail", lambda: bench.fit(max_epochs=1).result())
    Loss.fails_on = ()
    together = bench.fit(max_epochs=1).result()
    Loss.fails_on = (1,)
    attempt("one fails", lambda: bench.fit(max_epochs=1).result())
    attempt("after it", lambda: bench.fit(max_epochs=1).result())
    runs = {"alone": alone.id, "together": together.id}
    Path(f"rank{rank}.json").write_text(json.dumps({**runs, "errors": errors}))


if __name__ == "__main__":
    main()
