"""Architectures of one's own beside the shipped ones."""

import pytest
from small_models import small_spec

from tlm_repro.architectures.accounting import forward_flops, parameters
from tlm_repro.architectures.base import Options
from tlm_repro.architectures.registry import ARCHITECTURES, SHIPPED, architecture, check_model, register
from tlm_repro.architectures.transformer import Transformer
from tlm_repro.errors import ConfigError


class WindowOptions(Options):
    window: int = 8


class Windowed(Transformer):
    title = "Windowed"
    options = WindowOptions

    def mixer_parameters(self, model) -> int:
        return super().mixer_parameters(model) + WindowOptions.of(model).window


def test_a_registered_architecture_is_known_by_its_name_and_not_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARCHITECTURES, "windowed", Windowed())
    register("windowed", Windowed())  # a file of the user's can be read again
    spec, plain = small_spec("windowed", mixer={"window": 5}), small_spec()
    check_model(spec)
    assert architecture("windowed").title == "Windowed"
    assert parameters(spec).total == parameters(plain).total + 3 * 5
    assert forward_flops(spec, 4) == forward_flops(plain, 4) + 3 * 2 * 4 * 5
    assert "windowed" not in SHIPPED


def test_a_shipped_name_is_taken() -> None:
    with pytest.raises(ConfigError, match="architecture 'titans' is already registered: choose another name"):
        register("titans", Windowed())


def test_options_are_checked_by_the_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARCHITECTURES, "windowed", Windowed())
    with pytest.raises(ConfigError, match="options of architecture 'windowed': size: Extra inputs are not permitted"):
        check_model(small_spec("windowed", mixer={"size": 5}))
