"""What a view checks about itself, under a name without a fingerprint."""

import json
from pathlib import Path
from typing import Any

import pytest

from tlm_repro.errors import ArtifactError
from tlm_repro.records.view import View

VIEW = next((Path(__file__).parent / "fixtures/results/views").glob("motivation-*.json"))


def exchange_runs(view: dict[str, Any]) -> None:
    one, two = view["experiments"][0]["cells"][:2]
    one["run"], two["run"] = two["run"], one["run"]


def repeat_a_cell(view: dict[str, Any]) -> None:
    view["experiments"][0]["cells"].append(view["experiments"][0]["cells"][0])


def repeat_a_file(view: dict[str, Any]) -> None:
    view["files"].append(view["files"][0])


def add_a_file(view: dict[str, Any]) -> None:
    view["files"].append("results/evaluations/transformer_1b_uniform_s0-01234567/validation-01234567.json")


def change_the_scale(view: dict[str, Any]) -> None:
    view["experiments"][0]["toy"] = not view["toy"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (exchange_runs, r"experiments\.0\.cells\.0\.run: .*\. Its labels make it "),
        (repeat_a_cell, r"experiments\.0\.cells\.\d+: .*\. An earlier cell has this place\."),
        (repeat_a_file, r"files\.\d+: .*\. It is listed before\."),
        (add_a_file, r"files\.\d+: .*\. It is of a run that no cell has\."),
        (change_the_scale, r"experiments\.0\.toy: False\. The view has True\."),
    ],
)
def test_a_view_that_contradicts_itself_is_refused(change: Any, expected: str, tmp_path: Path) -> None:
    content = json.loads(VIEW.read_text())
    View.from_values(content, tmp_path / "view.json")
    change(content)
    with pytest.raises(ArtifactError, match=expected):
        View.from_values(content, tmp_path / "view.json")
