"""What runs cost, against numbers worked out by hand."""

import json
from pathlib import Path
from typing import Any

import pytest
import record_files

from tlm_repro.records.evaluation import Evaluation
from tlm_repro.reporting import cost

H100, CPU = "NVIDIA H100 80GB HBM3", "cpu"


def write(folder: Path, run: str, scale: str, suite: str = "validation", **changes: Any) -> Path:
    """An evaluation file of a run that took 10 hours on 8 H100, or as `changes` say."""
    labels = record_files.run(scale, seed="abc".index(run))
    training = {"device": H100, "wall_time_s": 36_000.0, "device_seconds": 288_000.0}
    values = {"parameters": 440_000_000, "training_flops": 3 * 10**19, "tokens": 10**10, "wall_time_s": 60.0}
    values |= {"training": training if suite == "validation" else None} | changes
    facts = {name: values[name] for name in ("parameters", "training_flops", "tokens")}
    facts["forward_flops"] = values["training_flops"] // values["tokens"]  # in sequences of three tokens
    common = {"run": labels, "model": record_files.FACTS | facts, "wall_time_s": values["wall_time_s"]}
    if suite == "validation":
        training = {"training": values["training"]} if values["training"] else {}
        content = record_files.validation(2.5, details=training, **common)
    else:
        content = record_files.zero_shot({"piqa": 0.5}, **common)
    path = folder / f"{run}-{suite}.json"
    path.write_text(json.dumps(content))
    return path


def read(paths: list[Path]) -> list[Evaluation]:
    return [Evaluation.read(path) for path in paths]


def table(paths: list[Path], *, toy: bool = False) -> list[dict[str, Any]]:
    return cost.table(read(paths), toy=toy).to_dict(orient="records")  # type: ignore[return-value]


def test_sums_by_hand(tmp_path: Path):
    """Two runs of 440M: 20 hours; 2 × 700 W × 8 × 10 h = 112 kWh. One of 1.3B on one GPU for an hour: 0.7 kWh."""
    one = {"device": H100, "wall_time_s": 3600.0, "device_seconds": 3600.0}
    large = {"parameters": 1_300_000_000, "training_flops": 8 * 10**20, "tokens": 10**11, "training": one}
    paths = [
        write(tmp_path, "a", "440m"),
        write(tmp_path, "a", "440m", "zero_shot", wall_time_s=240.0),
        write(tmp_path, "b", "440m", parameters=440_000_640, training_flops=5 * 10**19),
        write(tmp_path, "c", "1.3b", **large),
    ]
    large_row, small, both = table(paths)
    assert (small["runs"], small["parameters_low"], small["parameters_high"]) == (2, 440_000_000, 440_000_640)
    assert (small["flops_low"], small["flops_high"], small["flops"]) == (3 * 10**19, 5 * 10**19, 8 * 10**19)
    assert (small["tokens"], small["training_s"], small["evaluation_s"]) == (2 * 10**10, 72_000, 360)
    assert small["energy_kwh"] == pytest.approx(112)
    assert large_row["energy_kwh"] == pytest.approx(0.7)
    assert (both["architecture"], both["runs"], both["flops"]) == ("all", 3, 88 * 10**19)
    assert (both["training_s"], both["energy_kwh"]) == (75_600, pytest.approx(112.7))
    assert both["devices"] == H100


@pytest.mark.parametrize(
    "training",
    [
        {"device": CPU, "wall_time_s": 9.0, "device_seconds": 9.0},
        {"device": H100, "wall_time_s": 9.0, "device_seconds": None},  # trained before that was written down
        {"device": H100 + " MIG 1g.10gb", "wall_time_s": 9.0, "device_seconds": 9.0},  # a slice of one
    ],
)
def test_energy_is_not_guessed(tmp_path: Path, training: dict[str, Any]):
    frame = cost.table(read([write(tmp_path, "a", "tiny", training=training)]), toy=True)
    text = cost.sheet("cost", frame).text.iloc[0]
    assert (text["Energy (kWh)"], text["Training (s)"]) == ("not estimated", "9.0")


def test_what_is_partly_known_says_so(tmp_path: Path):
    paths = [write(tmp_path, "a", "440m"), write(tmp_path, "b", "440m", training=None)]
    text = cost.sheet("cost", cost.table(read(paths), toy=False)).text.iloc[0]
    assert text["Training (h)"] == "10.0 (1 of 2 runs)"
    assert text["Energy (kWh)"] == "56 (1 of 2 runs)"
    assert text["FLOPs a run"] == "3.00e+19"
    assert text["Training tokens"] == "20,000,000,000"


def test_old_files_have_no_training(tmp_path: Path):
    sheet = cost.sheet("cost", cost.table(read([write(tmp_path, "a", "440m", training=None)]), toy=True))
    text = sheet.text.iloc[0]
    assert (text["Training (s)"], text["Trained on"], text["Evaluation (s)"]) == (
        "not recorded",
        "not recorded",
        "60.0",
    )
    assert "Toy scale" in sheet.caption


def test_models_trained_elsewhere_cost_nothing_here(tmp_path: Path):
    path = tmp_path / "external.json"
    content = record_files.zero_shot({"piqa": 0.5}, **record_files.external("GPT-2"))
    path.write_text(json.dumps(content))
    assert cost.table(read([path]), toy=False).empty
