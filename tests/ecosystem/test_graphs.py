"""PyG: graphs in lists and in its own loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import workbench as wb
from tests.ecosystem.twins import fit, losses, plain

pyg = pytest.importorskip("torch_geometric")


def graphs(n: int = 24) -> list[Any]:
    from torch_geometric.data import Data

    generator = torch.Generator().manual_seed(0)
    found = []
    for i in range(n):
        nodes = 4 + i % 5
        edges = torch.randint(0, nodes, (2, 3 * nodes), generator=generator)
        found.append(
            Data(
                x=torch.randn(nodes, 6, generator=generator),
                edge_index=edges,
                y=torch.tensor([i % 2]),
            )
        )
    return found


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = pyg.nn.GCNConv(6, 8), nn.Linear(8, 2)

    def forward(self, data: Any) -> torch.Tensor:
        h = self.conv(data.x, data.edge_index).relu()
        out: torch.Tensor = self.head(pyg.nn.global_mean_pool(h, data.batch))
        return out


def loss(output: torch.Tensor, data: Any) -> torch.Tensor:
    return F.cross_entropy(output, data.y)


class Task(nn.Module):
    """A model whose output has its loss, as PyG's examples compute it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, data: Any) -> dict[str, torch.Tensor]:
        output = self.net(data)
        return {"loss": F.cross_entropy(output, data.y), "logits": output}


def expected(model: Task, epochs: int = 2) -> list[float]:
    from torch_geometric.loader import DataLoader

    return plain(
        model, DataLoader(graphs(), 8), lambda net, batch: net(batch)["loss"], epochs=epochs
    )


def test_its_own_loader(tmp_path: Path) -> None:
    from torch_geometric.loader import DataLoader

    model = Task()
    assert losses(
        fit(tmp_path, model, train=DataLoader(graphs(), 8), val=DataLoader(graphs(), 8))
    ) == expected(model)


def test_a_list_of_graphs_is_a_data_set(tmp_path: Path) -> None:
    from torch_geometric.data import Batch

    model = Task()
    run = fit(tmp_path, model, train=graphs(), collate_fn=Batch.from_data_list)
    assert losses(run) == expected(model)


def test_checks_weigh_by_graphs_not_by_nodes(tmp_path: Path) -> None:
    from torch_geometric.loader import DataLoader

    model = Task()
    loader = DataLoader(graphs(20), 8)  # 8, 8, 4
    bench = wb.Workbench(model, train=loader, val=loader, root=tmp_path, accelerator="cpu")
    found = bench.validate().result()["val_loss"]
    model.eval()
    with torch.no_grad():
        sums = [
            (model(batch)["loss"].item() * batch.num_graphs, batch.num_graphs) for batch in loader
        ]
    assert found == pytest.approx(sum(s for s, _ in sums) / sum(n for _, n in sums), rel=1e-6)


def test_one_graph_with_sampled_neighbours_is_tried(tmp_path: Path) -> None:
    """Node classification in full batches: the data set is one graph."""
    from torch_geometric.loader import DataLoader

    class Nodes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = pyg.nn.GCNConv(6, 2)

        def forward(self, data: Any) -> dict[str, torch.Tensor]:
            out = self.conv(data.x, data.edge_index)
            return {"loss": F.cross_entropy(out, data.labels)}

    graph = graphs(1)[0]
    graph.labels = torch.arange(graph.num_nodes) % 2
    model, loader = Nodes(), DataLoader([graph], 1)
    assert losses(fit(tmp_path, model, train=loader)) == plain(
        model, loader, lambda net, b: net(b)["loss"]
    )


def test_loaders_that_sample_a_graph_are_resumed(tmp_path: Path) -> None:
    """Their nodes are shuffled by the process's own random numbers."""
    from torch_geometric.loader import RandomNodeLoader

    def bench(name: str) -> wb.Workbench:
        loader = RandomNodeLoader(one_graph(), num_parts=4, shuffle=True)
        return wb.Workbench(
            OfNodes(), train=loader, lr=1e-2, max_epochs=3, root=tmp_path / name, accelerator="cpu"
        )

    whole = bench("whole").fit().result()
    parts = bench("parts")
    first = parts.fit(max_epochs=1).result()
    again = parts.fit(start=first.id, max_epochs=3).result()
    assert again.history["loss"].tolist() == whole.history["loss"].tolist()


def test_batches_by_the_number_of_nodes(tmp_path: Path) -> None:
    """Their sampler raises a ValueError where it is asked for its length."""
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader, DynamicBatchSampler

    generator = torch.Generator().manual_seed(0)
    graphs = [
        Data(x=torch.randn(3 + n % 4, 4, generator=generator), edge_index=torch.randint(0, 3, (2, 6), generator=generator), y=torch.zeros(3 + n % 4).long())
        for n in range(24)
    ]  # fmt: skip
    loader = DataLoader(graphs, batch_sampler=DynamicBatchSampler(graphs, max_num=20, mode="node"))
    net = OfNodes()
    assert losses(fit(tmp_path, net, train=loader)) == plain(
        net, loader, lambda model, batch: model(batch)["loss"]
    )


class OfNodes(torch.nn.Module):
    def __init__(self) -> None:
        from torch_geometric.nn import GCNConv

        super().__init__()
        torch.manual_seed(0)
        self.layer = GCNConv(4, 2)

    def forward(self, batch: Any) -> dict[str, torch.Tensor]:
        out = self.layer(batch.x, batch.edge_index)
        return {"loss": torch.nn.functional.cross_entropy(out, batch.y), "logits": out}


def one_graph() -> Any:
    from torch_geometric.data import Data

    generator = torch.Generator().manual_seed(0)
    x, edges = (
        torch.randn(60, 4, generator=generator),
        torch.randint(0, 60, (2, 240), generator=generator),
    )
    return Data(x=x, edge_index=edges, y=(x[:, 0] > 0).long())
