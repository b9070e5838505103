import pytest

from tlm_repro.errors import ConfigError
from tlm_repro.spec.evaluation import ZeroShotSpec


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
