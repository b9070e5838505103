import re
from pathlib import Path

import pytest

from tlm_repro.config.loading import load

ROOT = Path(__file__).parents[2]


FILES = [ROOT / "config.yaml", *sorted((ROOT / "config").glob("*.yaml"))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_shipped_configuration_loads(path: Path):
    assert load(path).name


def test_the_paper_configuration_states_the_paper_s_numbers():
    paper = load(ROOT / "config/paper.yaml")
    assert {name: scale.tokens for name, scale in paper.scales.items()} == {
        "440m": 30_000_000_000,
        "760m": 50_000_000_000,
        "1.3b": 100_000_000_000,
    }
    training = paper.training
    assert (training.learning_rate.kind, training.optimizer.kind) == ("cosine", "adamw")
    assert (training.learning_rate.peak, training.optimizer.weight_decay) == (4e-4, 0.1)
    assert training.sequence_length == 4096
    assert paper.data.tokenizer.vocab_size == 32_000
    sweep = paper.experiments.sweep
    assert sweep is not None
    assert len(sweep.ratios) * len(sweep.schedules) == 15
    assert not paper.toy


def test_every_number_of_the_paper_configuration_names_its_source():
    unmarked = [
        line
        for line in (ROOT / "config/paper.yaml").read_text().split("data:", 1)[1].splitlines()
        if re.search(r":\s*[\[{]?\s*\d[\d_.e-]*\b(?!m|\.3b)", line) and not re.search(r"\[(paper|lineage|ours)\]", line)
    ]
    # The widths of the three groups have their source above them; a repeated batch has it where it stands first.
    assert [line.split(":")[0].strip() for line in unmarked] == [
        "batch_tokens",
        "batch_tokens",
        "wider-early",
        "wider-middle",
        "wider-late",
    ]
