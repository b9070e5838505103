import errno
import json
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tlm_repro import cli
from tlm_repro.allocation.widths import layer_widths
from tlm_repro.models.hugging_face.configuration import TLMConfig
from tlm_repro.models.hugging_face.decoder import TLMForCausalLM


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "tlm_repro", *arguments], capture_output=True, text=True, cwd=cwd)


def test_widths_as_json():
    done = run(
        "widths",
        "--layers",
        "24",
        "--width",
        "3712",
        "--schedule",
        "cosine",
        "--start",
        "1.5",
        "--end",
        "0.5",
        "--json",
    )
    printed = json.loads(done.stdout)
    assert printed["widths"] == list(layer_widths("cosine", 24, 3712, start=1.5, end=0.5))
    assert (printed["widths"][0], printed["widths"][-1], sum(printed["widths"])) == (5568, 1856, 24 * 3712)


def test_widths_as_text_counts_the_parameters_moved():
    done = run(
        "widths",
        "--layers",
        "3",
        "--width",
        "64",
        "--schedule",
        "thirds",
        "--multipliers",
        "1.5,1.0,0.5",
        "--model-width",
        "10",
    )
    assert done.returncode == 0
    assert "sum 192" in done.stdout
    assert "960 parameters" in done.stdout  # 32 units of width move; 3·d parameters a unit


def test_widths_takes_any_parameter_of_a_schedule():
    done = run("widths", "--layers", "6", "--width", "256", "--schedule", "crown", "--set", "peak=2", "--json")
    assert json.loads(done.stdout)["widths"] == list(layer_widths("crown", 6, 256, peak=2.0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("widths", "--layers", "4", "--width", "100", "--schedule", "linear"), "multiple of 16"),
        (("widths", "--layers", "4", "--width", "64", "--schedule", "cosin"), "cosine"),
        (("widths", "--layers", "3", "--width", "64", "--schedule", "thirds", "--multipliers", "a"), "--multipliers a"),
        (("tokenize", "--spec", "{}", "--out", "x/manifest.json"), "--spec: corpus"),
        (("evaluate", "--spec", "{}", "--model", "m", "--data", "d", "--out", "x"), "pass a JSON object whose suite"),
        (("claims",), "claims: no results. Pass --view"),
        (("views", "--config", "{"), "--config: not valid JSON"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: tuple[str, ...], message: str, tmp_path: Path):
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("tlm-repro: error: ")
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_can_t_be_written_is_told_before_any_work(tmp_path: Path):
    spec = '{"suite": "zero_shot", "source": "demo", "tasks": ["piqa"], "max_length": 8}'
    (tmp_path / "file").touch()
    for out, seen in ((tmp_path, "is a folder"), (tmp_path / "file" / "out.json", "can't be written")):
        done = run("evaluate", "--spec", spec, "--model", "no-such-model", "--out", str(out))
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert f"--out: {out} {seen}" in done.stderr


def test_a_full_disk_is_one_line(monkeypatch, capsys):
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")  # as `write` raises it: without a file's name

    monkeypatch.setattr(cli, "app", full)
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 1
    assert re.fullmatch(r"tlm-repro: error: .*No space left on device.*free space\n", capsys.readouterr().err)


def test_sigterm_lets_temporary_folders_go(tmp_path: Path):
    before = signal.getsignal(signal.SIGTERM)
    try:
        cli.exit_cleanly_on_sigterm()
        with pytest.raises(SystemExit) as stopped, tempfile.TemporaryDirectory(dir=tmp_path):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (stopped.value.code, list(tmp_path.iterdir())) == (143, [])


def test_export_writes_a_llama_and_prints_what_it_costs(tmp_path: Path):
    config = TLMConfig(hidden_size=32, num_hidden_layers=3, intermediate_sizes=(48, 32, 16), vocab_size=64)
    TLMForCausalLM(config).save_pretrained(tmp_path / "ours")
    done = run("export", "--model", "ours", "--out", "served/llama", "--dtype", "bf16", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("ours as llama, bf16: 3 layers, MLP widths 16 to 48 filled up to 48\n")
    assert re.search(r"of these in MLPs, M .* \+50\.0 %", done.stdout)
    written = json.loads((tmp_path / "served/llama/config.json").read_text())
    assert (written["model_type"], written["intermediate_size"], written["dtype"]) == ("llama", 48, "bfloat16")


def test_the_published_tables_support_the_paper_s_claims():
    judged = json.loads(run("claims", "--published", "--json").stdout)["claims"]
    verdicts = {claim["number"]: claim["outcome"] for claim in judged}
    expected = {**dict.fromkeys(range(1, 8), "reproduced"), 8: "not run", 9: "not run", 10: "not run"}
    assert {number: verdicts[number] for number in expected} == expected


def test_help_imports_no_torch():
    code = "import sys, tlm_repro.cli; print([m for m in ('torch', 'pandas', 'transformers') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
