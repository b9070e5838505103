"""The real workflow on a small corpus, in a folder of its own."""

import shutil
from pathlib import Path
from typing import Any

import yaml
from small_study import study

ROOT = Path(__file__).parents[2]


def small_config() -> dict[str, Any]:
    """The tests' own study, cut down to seconds: two allocations, two tasks, twenty steps."""
    config = study()
    config["name"] = "small"
    config["data"]["corpus"]["pattern"] = "**/*195*.txt"
    config["data"] |= {"validation_fraction": 0.3, "shard_tokens": 20_000}
    config["data"]["tokenizer"] = {"kind": "train", "vocab_size": 300}
    for name in ("440m-toy", "760m-toy"):
        config["scales"][name] |= {"layers": 6, "model_width": 32, "heads": 2, "tokens": 10_240, "batch_tokens": 512}
        config["scales"][name]["mlp_width"] = {"transformer": 128}
    config["architectures"] = {"transformer": {}}
    config["trainer"] = {"checkpoint_seconds": 1, "validations": 2, "validation_tokens": 1024}
    experiments = config["experiments"]
    experiments["motivation"]["allocations"] = ["uniform", "wider-early"]
    experiments["sweep"] |= {"schedules": ["cosine"], "ratios": [[1.5, 0.5]]}
    experiments["allocations"]["allocations"] = ["uniform", "tapered", "middle-70"]
    experiments["main"] |= {"scales": ["760m-toy"], "architectures": ["transformer"]}
    config["evaluation"]["validation"]["tokens"] = 2048
    config["evaluation"]["zero_shot"] |= {"tasks": ["piqa", "wikitext"], "limit": 4}
    config["novelty"] |= {"models": [], "tokens": 256, "window": 128}
    return config


def checkout(folder: Path, config: dict[str, Any]) -> Path:
    for name in ("workflow", "profiles"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "Snakefile", folder)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder
