"""Layers in rows and modules: few enough to be told apart, in the order of the model, and none is left out."""

from __future__ import annotations

import pytest

from workbench.instruments.layer_groups import in_order, modules, rows

BLOCK = ("ln.weight", "ln.bias", "attn.weight", "attn.bias", "mlp.weight", "mlp.bias")


def a_stack(blocks: int) -> tuple[str, ...]:
    return (
        "wte.weight",
        *(f"h.{i}.{part}" for i in range(blocks) for part in BLOCK),
        "head.weight",
        "head.bias",
    )


@pytest.mark.parametrize(
    ("layers", "shown", "some"),
    [
        (a_stack(6), 39, ["wte.weight", "h.0.ln.weight", "head.bias"]),
        (a_stack(12), 39, ["wte.weight", "h.0.ln", "h.11.mlp", "head.bias"]),
        (a_stack(16), 19, ["wte.weight", "h.0", "h.15", "head.weight", "head.bias"]),
        (a_stack(100), 36, ["wte.weight", "h.0 … h.2", "h.99", "head"]),
        (
            tuple(
                f"{side}.{i}.w{k}" for side in ("enc", "dec") for i in range(24) for k in range(9)
            ),
            36,
            ["enc.0 … enc.1", "dec.23"],
        ),
        (tuple(map(str, range(3000))), 40, ["0 … 74"]),
        (("w",) * 50, 25, ["w … w"]),
        ((), 0, []),
    ],
)
def test_rows_are_modules_where_layers_are_many(
    layers: tuple[str, ...], shown: int, some: list[str]
) -> None:
    found = rows(layers)
    assert len(found) == shown <= 40
    assert {*some} <= {row.name for row in found}
    assert [row.first for row in found] == [0, *(row.end for row in found)][: len(found)]
    assert (found[-1].end if found else 0) == len(layers)


def test_layers_of_a_module_are_brought_together() -> None:
    assert in_order(["a.w", "b.w", "a.b", "c", "b.b"]) == [0, 2, 1, 4, 3]


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (("scale", "0.weight", "0.bias", "2.weight", "2.bias"), {"scale": [0], "0": [1, 2], "2": [3, 4]}),
        (("a.w", "b.w", "a.b"), {"a": [0, 2], "b": [1]}),
        (a_stack(2), {"wte": [0], "h.0.ln": [1, 2], "h.0.attn": [3, 4], "h.0.mlp": [5, 6], "h.1.ln": [7, 8],
                      "h.1.attn": [9, 10], "h.1.mlp": [11, 12], "head": [13, 14]}),
    ],
)  # fmt: skip
def test_modules_have_all_their_layers(
    layers: tuple[str, ...], expected: dict[str, list[int]]
) -> None:
    assert modules(layers) == expected


def test_many_modules_are_grouped_and_none_is_left_out() -> None:
    found = modules(a_stack(100))
    assert {"wte", "head"} < {*found}
    assert len(found) <= 8
    assert sorted(place for places in found.values() for place in places) == list(
        range(len(a_stack(100)))
    )
