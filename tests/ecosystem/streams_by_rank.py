"""A script that trains, validates and predicts with a stream of another package, of which each rank reads its own share.

`python streams_by_rank.py KIND FOLDER 2` has two devices; under torchrun its processes are the ranks.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import workbench as wb

SAMPLES, SHARDS = 48, 4


def values(number: int) -> dict[str, Any]:
    return {"x": np.full(4, number, np.float32), "labels": number % 2}


def write(kind: str, folder: Path) -> None:
    """Write the samples as this package stores them."""
    folder.mkdir(parents=True)
    if kind.startswith("datasets"):
        shards = 3 if kind == "datasets of odd shards" else SHARDS
        for shard in range(shards):
            lines = [json.dumps({"x": [float(n)] * 4, "labels": n % 2}) for n in range(SAMPLES)]
            (folder / f"{shard}.jsonl").write_text("\n".join(lines[shard::shards]))
    if kind == "litdata":
        import litdata

        litdata.optimize(values, list(range(SAMPLES)), str(folder), chunk_size=6, num_workers=1)
    elif kind == "mosaic":
        from streaming import MDSWriter

        columns = {"x": "ndarray:float32:4", "labels": "int"}
        with MDSWriter(out=str(folder), columns=columns, size_limit=400) as out:
            for number in range(SAMPLES):
                out.write(values(number))
    elif kind == "webdataset":
        import webdataset

        for shard in range(SHARDS):
            with webdataset.TarWriter(str(folder / f"{shard}.tar")) as out:
                for number in range(shard * 12, shard * 12 + 12):
                    sample = values(number)
                    out.write(
                        {"__key__": f"{number:03}", "x.npy": sample["x"], "cls": sample["labels"]}
                    )


def stream(kind: str, folder: Path) -> Any:
    """A stream of all samples, made as this package's documentation says."""
    if kind.startswith("datasets"):
        import datasets

        files = sorted(map(str, folder.glob("*.jsonl")))
        samples = datasets.load_dataset("json", data_files=files, split="train", streaming=True)
        samples = samples.with_format("torch")
        if "split" in kind:
            from datasets.distributed import split_dataset_by_node

            rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            samples = split_dataset_by_node(samples, rank, world)
        return samples.shuffle(seed=3, buffer_size=10) if "shuffled" in kind else samples
    if kind == "litdata":
        import litdata

        return litdata.StreamingDataset(str(folder), shuffle=True, seed=3)
    if kind == "mosaic":
        from streaming import StreamingDataset

        # else each data set makes a group and ends it, and two of them get in each other's way
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group("gloo")
        return StreamingDataset(local=str(folder), batch_size=4, shuffle=False)
    import webdataset

    urls = sorted(map(str, folder.glob("*.tar")))
    pipeline = webdataset.WebDataset(
        urls, nodesplitter=webdataset.split_by_node, shardshuffle=False
    )
    return pipeline.decode().to_tuple("x.npy", "cls")


def collate(samples: list[Any]) -> tuple[Tensor, Tensor]:
    pairs = [(s["x"], s["labels"]) if isinstance(s, dict) else tuple(s) for s in samples]
    x = torch.stack([torch.as_tensor(x).float() for x, _ in pairs])
    return x, torch.tensor([int(label) for _, label in pairs])


class Net(nn.Module):
    """Its output has the number of the sample behind two logits."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.line = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.line(x / SAMPLES), x[:, :1]], 1)


def loss(output: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(output[:, :2], labels)


def main(kind: str, folder: str, devices: str = "") -> None:
    samples = Path(folder, "samples")
    asked = {"streams": "shard"} if kind in ("datasets", "datasets shuffled", "datasets of odd shards") else {}  # fmt: skip
    bench = wb.Workbench(
        Net(), train=stream(kind, samples), val=stream(kind, samples), loss=loss, collate_fn=collate, accelerator="cpu",
        batch_size=4, max_epochs=2, lr=0.1, root=folder, **({"devices": int(devices)} if devices else {}), **asked,
    )  # fmt: skip
    run = bench.fit().result()
    again = bench.fit("continue", max_epochs=3).result()
    predicted = torch.cat(bench.predict(stream(kind, samples)).result())
    said = {
        "loss": list(run.history["loss"]),
        "updates": len(again.history["loss"]),
        "val": bench.validate().result()["val_loss"],
        "predicted": predicted[:, 2].tolist(),
        "notes": [str(e.text) for e in again.outline if type(e).__name__ == "Message"],
    }
    rank = os.environ.get("RANK", "0")
    Path(folder, f"rank{rank}.json").write_text(json.dumps(said, default=float))
    bench.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
