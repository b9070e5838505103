from pathlib import Path

import numpy as np
import pytest
import torch
from small_study import study_grid

from tlm_repro.config.loading import load
from tlm_repro.models.decoder import LanguageModel
from tlm_repro.models.folder import write_decoder
from tlm_repro.overview.disk import checkpoint_bytes, corpus_bytes, model_bytes, token_bytes
from tlm_repro.spec.optimizers import AdamW
from tlm_repro.spec.run import ModelSpec
from tlm_repro.study.grid import expand
from tlm_repro.training.checkpoint import Checkpoints, Snapshot
from tlm_repro.training.optimizers import build

ROOT = Path(__file__).parents[2]


def model_of(architecture: str, **changes: object) -> ModelSpec:
    values = {
        "architecture": architecture,
        "layers": 3,
        "model_width": 32,
        "heads": 2,
        "intermediate_sizes": (96, 64, 32),
        "vocab_size": 300,
        "sequence_length": 16,
        "tied_embeddings": False,
        "rope_theta": 1e4,
        "norm_eps": 1e-5,
        "initializer_range": 0.02,
    }
    return ModelSpec.model_validate(values | changes)


HOPE = {"update": "optimizer", "periods": (1, 2, 4, 8)}


@pytest.mark.parametrize(
    ("architecture", "mixer", "tied"),
    [("transformer", {}, False), ("transformer", {}, True), ("hope_attention", HOPE, False)],
)
def test_a_written_checkpoint_has_the_bytes_that_are_foreseen(
    architecture: str, mixer: dict, tied: bool, tmp_path: Path
):
    spec = model_of(architecture, mixer=mixer, tied_embeddings=tied)
    model = LanguageModel(spec)
    optimizer = build(AdamW(kind="adamw"), model, torch.device("cpu"))
    model(input_ids=torch.arange(16)[None], labels=torch.arange(16)[None]).loss.backward()
    optimizer.take_step(1, 1e-3)
    saved = Checkpoints(tmp_path, "run").write(Snapshot.of(1, model, optimizer, [], {}))
    written = sum(path.stat().st_size for path in saved.glob("*.safetensors"))
    headers = written - checkpoint_bytes(spec)  # names, shapes, and AdamW's step numbers
    assert 0 < headers < 400 * 4 * len(list(model.parameters()))
    write_decoder(model, tmp_path, bos_token_id=None, eos_token_id=None)
    file = (tmp_path / "model.safetensors").stat().st_size
    assert 0 < file - model_bytes(spec) < 200 * len(list(model.parameters()))


def test_gradient_sums_by_hand():
    """Three of four equal levels wait: ¾ of 3·d·ΣD parameters, at 4 bytes; a Transformer of that size holds none."""
    hope = model_of("hope_attention", mixer=HOPE)
    plain = model_of("transformer")
    assert checkpoint_bytes(hope) - checkpoint_bytes(plain) == 4 * 3 * 32 * (96 + 64 + 32) * 3 // 4
    in_context = model_of("hope_attention", mixer={"update": "in_context"})
    assert checkpoint_bytes(in_context) == 3 * model_bytes(in_context)


def test_tokens_take_as_many_bytes_as_their_type():
    """The paper's: two bytes for each of 100B training and 10M held-out tokens."""
    paper = expand(load(ROOT / "config/paper.yaml")).data
    assert corpus_bytes(paper) == 2 * (100_000_000_000 + 10_000_000)
    assert corpus_bytes(study_grid().data) is None
    for last in (np.iinfo(np.uint16).max, np.iinfo(np.uint16).max + 1):
        assert token_bytes(last + 1) == np.min_scalar_type(last).itemsize
