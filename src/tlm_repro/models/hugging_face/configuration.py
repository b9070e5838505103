"""The decoder's configuration, in Hugging Face's form: `config.json` of every saved model."""

from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import PretrainedConfig

from tlm_repro.architectures.base import Options
from tlm_repro.architectures.registry import architecture, check_model
from tlm_repro.spec.run import ModelSpec

STATE_LAYER = "tlm_state"


@strict(accept_kwargs=True)
class TLMConfig(PretrainedConfig):
    """Shape and options of a decoder.

    `intermediate_sizes` holds one MLP width a layer; 0 leaves that layer without an MLP. `max_position_embeddings` is
    the sequence length of training: nothing stops a longer input. `mixer` holds the options of the architecture.
    Raises ConfigError for values that don't fit together.
    """

    model_type = "tlm"
    keys_to_ignore_at_inference = ("cache",)

    architecture: str = "transformer"
    vocab_size: int = 32000
    hidden_size: int = 128
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    intermediate_sizes: list[int] | tuple[int, ...] = (512, 512)
    max_position_embeddings: int = 4096
    rope_theta: float | int = 10000.0
    rms_norm_eps: float | int = 1e-5
    initializer_range: float | int = 0.02
    tie_word_embeddings: bool = False
    mixer: dict[str, Any] | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        self.intermediate_sizes = list(self.intermediate_sizes)
        self.mixer = dict(self.mixer or {})
        super().__post_init__(**kwargs)
        check_model(self.to_spec())

    @classmethod
    def from_spec(
        cls, model: ModelSpec, *, bos_token_id: int | None = None, eos_token_id: int | None = None
    ) -> "TLMConfig":
        """The configuration of the decoder that `model` describes. Raises ConfigError as the constructor does."""
        return cls(
            architecture=model.architecture,
            vocab_size=model.vocab_size,
            hidden_size=model.model_width,
            num_hidden_layers=model.layers,
            num_attention_heads=model.heads,
            intermediate_sizes=list(model.intermediate_sizes),
            max_position_embeddings=model.sequence_length,
            rope_theta=model.rope_theta,
            rms_norm_eps=model.norm_eps,
            initializer_range=model.initializer_range,
            tie_word_embeddings=model.tied_embeddings,
            mixer=dict(model.mixer),
            bos_token_id=bos_token_id,
            eos_token_id=eos_token_id,
        )

    def to_spec(self) -> ModelSpec:
        """The inverse of `from_spec`, without token ids. Raises ConfigError for values that no decoder can have."""
        values = {
            "architecture": self.architecture,
            "layers": self.num_hidden_layers,
            "model_width": self.hidden_size,
            "heads": self.num_attention_heads,
            "intermediate_sizes": tuple(self.intermediate_sizes),
            "vocab_size": self.vocab_size,
            "sequence_length": self.max_position_embeddings,
            "tied_embeddings": self.tie_word_embeddings,
            "rope_theta": self.rope_theta,
            "norm_eps": self.rms_norm_eps,
            "initializer_range": self.initializer_range,
            "mixer": dict(self.mixer or {}),
        }
        return ModelSpec.from_values(values, "TLMConfig")

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def layer_types(self) -> list[str]:
        """What the cache keeps for each layer, as transformers reads it: keys and values, or a state beside them."""
        stateful = architecture(self.architecture).keeps_state(self.to_spec())
        return [STATE_LAYER if stateful else "full_attention"] * self.num_hidden_layers

    def validate_layer_type(self) -> None:
        """Nothing to check: `layer_types` is derived. transformers would take types from a closed list only."""

    @property
    def options(self) -> Options:
        """`mixer`, typed and with its defaults filled in, by the registry's entry for this architecture."""
        return architecture(self.architecture).options.of(self.to_spec())
