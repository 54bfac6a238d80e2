"""The head of a script: the names under which its packages are installed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from workbench.export.assembly import text


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, list[str]]]:
    """What is installed, by module; a test may install more. Each look at it is counted."""
    distributions = {"sklearn": ["scikit-learn"], "looks": []}

    def look() -> dict[str, list[str]]:
        distributions["looks"].append("")
        return dict(distributions)

    monkeypatch.setattr(text, "packages_distributions", look)
    text._distributions.cache_clear()
    yield distributions
    text._distributions.cache_clear()


def test_a_package_that_was_installed_since_is_named(installed: dict[str, list[str]]) -> None:
    assert text.packages(["sklearn"]) == text.packages(["sklearn"]) == ["scikit-learn"]
    installed["cv2"] = ["opencv-python"]
    assert text.packages(["cv2", "sklearn"]) == ["opencv-python", "scikit-learn"]
    assert text.packages(["of_nobody"]) == ["of_nobody"]


def test_what_is_installed_is_read_once_and_only_where_a_script_needs_more_than_torch(
    installed: dict[str, list[str]],
) -> None:
    assert text.packages([]) == []
    assert not installed["looks"]
    for _ in range(3):
        text.packages(["sklearn"])
    assert len(installed["looks"]) == 1
