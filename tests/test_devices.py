import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tlm_repro.devices import ARITHMETICS, devices, find_device, peak_flops, utilisation
from tlm_repro.errors import ConfigError

# Product names as torch.cuda.get_device_name gives them, and dense bf16 TFLOP/s.
REPORTED = [
    ("NVIDIA H100 80GB HBM3", "H100 SXM", 989.4),
    ("NVIDIA H100 PCIe", "H100 PCIe", 756),
    ("NVIDIA H100 NVL", "H100 NVL", 835.5),
    ("NVIDIA H200", "H200 SXM", 989.4),
    ("NVIDIA B200", "B200", 2250),
    ("NVIDIA A100-SXM4-40GB", "A100 SXM", 312),
    ("A100-SXM4-80GB", "A100 SXM", 312),
    ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB", 312),
    ("NVIDIA A10", "A10", 125),
    ("NVIDIA L40S", "L40S", 362.05),
    ("NVIDIA GeForce RTX 4090", "RTX 4090", 165.2),
    ("AMD Instinct MI300X", "MI300X", 1307.4),
    ("AMD Instinct MI250X", "MI250X", 191.5),  # half of the module's 383: torch counts dies
]


@pytest.mark.parametrize(("product", "name", "tflops"), REPORTED)
def test_a_product_is_known_by_the_name_that_torch_reports(product: str, name: str, tflops: float):
    device = find_device(product)
    assert device is not None
    assert (device.name, device.peaks["bf16"]) == (name, tflops * 1e12)
    assert find_device(name.lower()) is device


@pytest.mark.parametrize(
    "product",
    [
        "cpu",
        "",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",  # a seventh of one
        "NVIDIA A100-SXM-64GB",  # a variant with more units
        "NVIDIA A10G",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA H20",
    ],
)
def test_what_isnt_in_the_table_is_unknown_and_never_guessed(product: str):
    assert find_device(product) is None


@pytest.mark.parametrize(
    ("product", "watts"),
    [
        ("NVIDIA H100 80GB HBM3", 700),
        ("NVIDIA H200", 700),
        ("NVIDIA H100 PCIe", 350),
        ("NVIDIA A100-SXM4-80GB", 400),
        ("NVIDIA A100 80GB PCIe", 300),
        ("NVIDIA A100-PCIE-40GB", 250),
        ("AMD Instinct MI250X", 250),  # half of the module's 500
        ("NVIDIA GH200 480GB", None),  # its 1,000 W include the CPU's
    ],
)
def test_the_power_of_a_board_is_the_data_sheets(product: str, watts: float | None):
    device = find_device(product)
    assert device is not None
    assert device.watts == watts


def test_rows_are_dense_peaks_with_a_source():
    table = devices()
    assert len({device.name for device in table}) == len(table)
    for device in table:
        assert "sheet" in device.source or "whitepaper" in device.source or "brief" in device.source
        assert list(device.peaks) == [kind for kind in ARITHMETICS if kind in device.peaks]
        assert sorted(device.peaks.values(), reverse=True) == list(device.peaks.values())
        if "tf32" in device.peaks:  # tensor units do half as many products in TF32
            assert device.peaks["bf16"] / device.peaks["tf32"] == pytest.approx(2, rel=0.03)
        others = [other.name for other in table if other is not device]
        assert not any(re.fullmatch(device.pattern, f"NVIDIA {name}") for name in others)


def used(**changes: Any):
    run = {"flops_per_token": 6e9, "tokens_per_second": 8 * 65_960, "device": "NVIDIA H100 80GB HBM3", "processes": 8}
    return utilisation(**(run | {"arithmetic": "bf16"} | changes))


def test_utilisation_by_hand():
    assert used().value == pytest.approx(6e9 * 65_960 / 989.4e12)
    assert used(processes=16).value == pytest.approx(used().value / 2)
    assert used(arithmetic="tf32").value == pytest.approx(2 * used().value)


def test_utilisation_is_unknown_rather_than_wrong():
    """fp32 products at this speed would be 5.9 times what the GPU can do: the run must have used something else."""
    beyond = used(arithmetic="fp32")
    assert beyond.value is None
    assert beyond.note.startswith("5.91 × the fp32 peak of H100 SXM")
    assert (used(device="cpu").value, used(device="cpu").note) == (None, "unknown device 'cpu'")
    assert used(device="Tesla V100-SXM2-32GB").note == "no bf16 peak of V100 SXM in its data sheet"


def test_a_stated_device_must_be_known():
    assert peak_flops("h100 sxm", "bf16") == 989.4e12
    with pytest.raises(ConfigError, match=r"unknown device 'H10': choose one of B200, .*--peak-tflops"):
        peak_flops("H10", "bf16")
    with pytest.raises(ConfigError, match="V100 SXM has no bf16 peak"):
        peak_flops("V100 SXM", "bf16")


@pytest.mark.process
def test_the_table_needs_no_torch():
    code = "import sys; from tlm_repro.devices import devices; print(len(devices()) > 20, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


CHOOSE = """
import sys, types, torch
torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: 2
torch.cuda.get_device_properties = lambda index: types.SimpleNamespace(uuid=f"test-{sys.argv[1]}-{index}")
from tlm_repro.devices import default_device
print(default_device(), default_device(), flush=True)
sys.stdin.readline()
"""


@pytest.mark.process
def test_processes_on_one_machine_spread_over_its_gpus(tmp_path: Path):
    """Two get one each, a third shares the first, and one that has ended leaves its own free."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}

    def start() -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-c", CHOOSE, tmp_path.name]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    started = [start() for _ in range(3)]
    assert [chosen for _, chosen in started] == ["cuda:0 cuda:0", "cuda:1 cuda:1", "cuda:0 cuda:0"]
    started[1][0].communicate("")
    fourth, chosen = start()
    assert chosen == "cuda:1 cuda:1"
    for process in (started[0][0], started[2][0], fourth):
        process.communicate("")
