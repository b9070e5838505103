import hashlib

import pytest

from tlm_repro.artifacts.fingerprint import canonical_json, fingerprint


def test_canonical_json_ignores_order_and_refuses_nan():
    assert canonical_json({"b": 1, "a": [1.5, None]}) == '{"a":[1.5,null],"b":1}'
    with pytest.raises(ValueError, match="JSON"):
        canonical_json({"a": float("nan")})


def test_fingerprint_is_the_sha256_of_the_canonical_json():
    assert fingerprint({"b": 1, "a": 2}) == hashlib.sha256(b'{"a":2,"b":1}').hexdigest()[:8]
