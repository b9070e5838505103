import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
from attempts import Launch

from tlm_repro.data.shards import TokenData
from tlm_repro.data.tokenisation import build
from tlm_repro.spec.data import DataSpec, FilesCorpus, TrainedTokenizer
from tlm_repro.spec.run import ModelSpec, RunLabels, RunSpec, TrainingSpec

SENTENCE = "the quick brown fox jumps over a lazy dog while five boxing wizards vex my sphinx of quartz. "


@pytest.fixture(scope="session")
def periodic_data(tmp_path_factory: pytest.TempPathFactory) -> TokenData:
    """Twelve documents that repeat one sentence: after its first tokens nothing in them is a surprise."""
    folder = tmp_path_factory.mktemp("periodic")
    for index in range(12):
        (folder / f"{index:02}.txt").write_text(SENTENCE * 60)
    spec = DataSpec(
        corpus=FilesCorpus(paths=(str(folder / "*.txt"),), format="text"),
        tokenizer=TrainedTokenizer(vocab_size=300),
        validation_fraction=0.2,
        shard_tokens=4096,
    )
    build(spec, folder / "data", workers=1)
    return TokenData.open(folder / "data" / "manifest.json")


@pytest.fixture(scope="session")
def tiny_run(periodic_data: TokenData) -> Callable[..., RunSpec]:
    """A run of three tapered layers of width 32; keywords change its training or, with `model`, its model."""

    def make(*, model: dict[str, Any] | None = None, **training: Any) -> RunSpec:
        shape: dict[str, Any] = {
            "architecture": "transformer",
            "layers": 3,
            "model_width": 32,
            "heads": 2,
            "intermediate_sizes": (96, 64, 32),
            "vocab_size": 300,
            "sequence_length": 16,
            "tied_embeddings": True,
            "rope_theta": 10000.0,
            "norm_eps": 1e-5,
            "initializer_range": 0.02,
        }
        optimisation: dict[str, Any] = {
            "steps": 12,
            "batch_sequences": 8,
            "sequence_length": 16,
            "warmup_steps": 2,
            "peak_learning_rate": 1e-2,
            "final_learning_rate_ratio": 0.1,
            "weight_decay": 0.1,
            "beta1": 0.9,
            "beta2": 0.95,
            "eps": 1e-8,
            "clip_norm": 1.0,
            "precision": "fp32",
            "seed": 3,
        }
        shape |= model or {}
        seed = training.get("seed", optimisation["seed"])
        return RunSpec(
            labels=RunLabels(architecture=shape["architecture"], scale="tiny", allocation="linear-1.5-0.5", seed=seed),
            model=ModelSpec(**shape),
            data=periodic_data.manifest.spec,
            training=TrainingSpec(**(optimisation | training)),
        )

    return make


@pytest.fixture(scope="session")
def launch(periodic_data: TokenData) -> Iterator[Launch]:
    """Starts an attempt from a server that has the imports behind it: half a second a process instead of five."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent))
        patch.setenv("OMP_NUM_THREADS", "1")
        import attempt

        context = multiprocessing.get_context("forkserver")
        assert isinstance(context, ForkServerContext)
        context.set_forkserver_preload(["tlm_repro.training.trainer"])

        def start(
            spec: RunSpec, place: Path, environment: dict[str, str] | None = None, **options: Any
        ) -> ForkServerProcess:
            manifest = str(periodic_data.manifest.folder / "manifest.json")
            arguments = (spec.to_json(), manifest, str(place), options, environment or {})
            process = context.Process(target=attempt.attempt, args=arguments, daemon=True)
            process.start()
            return process

        yield start


@pytest.fixture
def place(tmp_path: Path) -> dict[str, Path]:
    """Where `pretrain` writes."""
    return {"folder": tmp_path / "run", "checkpoints": tmp_path / "checkpoints"}
