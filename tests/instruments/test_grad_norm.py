"""The total norms of many updates at once are those of each update, to the bit."""

import math

import pytest
import torch

from workbench.instruments.grad_norm import as_floats, entries, layer_norms, total_norm, total_norms


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("p", [2.0, 1.0, 3.0, math.inf])
def test_totals_of_rows_are_those_of_each_row(p, kind):
    generator = torch.Generator().manual_seed(0)
    for layers in (1, 2, 3, 7, 8, 9, 16, 33, 64, 129, 1000):
        sizes = torch.exp(8 * torch.randn(20, layers, generator=generator))
        table = (torch.rand(20, layers, generator=generator) * sizes).to(kind)
        assert torch.equal(
            total_norms(table, p), torch.stack([total_norm(list(row.unbind()), p) for row in table])
        )


def test_norms_are_those_of_the_gradients_that_exist():
    dense, sparse, none = (torch.nn.Parameter(torch.zeros(3, 2)) for _ in range(3))
    dense.grad = torch.full((3, 2), 2.0)
    # one row, used twice
    sparse.grad = torch.sparse_coo_tensor(
        [[1, 1]], [[3.0, 0.0], [0.0, 4.0]], (3, 2), check_invariants=True
    )
    norms = layer_norms(entries([dense, none, sparse]), 2.0)
    assert as_floats(norms) == pytest.approx([math.sqrt(24), 5.0])
    assert as_floats(torch.stack(list(norms))) == as_floats(norms)
    assert sparse.grad.is_coalesced()
