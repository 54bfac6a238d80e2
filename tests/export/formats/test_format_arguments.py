"""Arguments of export that only a script on torch has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import workbench as wb
from tests.export.export_running import make_bench


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[wb.Workbench]:
    folder = tmp_path_factory.mktemp("fitted")
    bench = make_bench(folder, "model, train=(x, y), loss=F.cross_entropy, max_steps=1")
    bench.fit().result()
    yield bench
    bench.close()


@pytest.mark.parametrize("argument", ["resume", "checks", "log_file", "tracker"])
@pytest.mark.parametrize("format", ["settings", "lightning", "workbench"])
def test_they_are_refused_for_another_format(
    fitted: wb.Workbench, format: str, argument: str
) -> None:
    with pytest.raises(wb.ExportError, match=f"^format='{format}' has no {argument}=True: "):
        fitted.script(format=format, **{argument: True})  # type: ignore[arg-type]
