import pytest

from tlm_repro.errors import ConfigError
from tlm_repro.spec.base import Spec, added_later, slug


class Inner(Spec):
    old: int = 1
    new: int = added_later(5)


class Outer(Spec):
    inner: Inner = Inner()


def test_a_key_added_later_at_its_neutral_value_leaves_the_canonical_form_as_it_was():
    assert Outer().canonical() == {"inner": {"old": 1}}
    assert Outer(inner=Inner(new=6)).canonical() == {"inner": {"old": 1, "new": 6}}
    assert Outer.from_json('{"inner":{"old":1}}') == Outer()


@pytest.mark.parametrize(
    ("text", "message"),
    [('{"inner": {"old": "x"}}', "inner.old"), ('{"other": 1}', "other"), ("{", "the whole text")],
)
def test_a_bad_spec_names_the_key(text: str, message: str):
    with pytest.raises(ConfigError, match=message):
        Outer.from_json(text)


def test_slugs_are_safe_file_names():
    assert slug("HuggingFaceFW/FineWeb Edu_1.5B") == "huggingfacefw-fineweb-edu-1.5b"
