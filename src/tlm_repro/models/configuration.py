"""The decoder's configuration, in Hugging Face's form: `config.json` of every saved model."""

from typing import Any

from huggingface_hub.dataclasses import strict
from pydantic import ValidationError
from transformers import PretrainedConfig

from tlm_repro.architectures.registry import architecture
from tlm_repro.errors import ConfigError
from tlm_repro.spec.base import Spec
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
        self._check()

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
        """The inverse of `from_spec`; token ids are no part of it."""
        return ModelSpec(
            architecture=self.architecture,
            layers=self.num_hidden_layers,
            model_width=self.hidden_size,
            heads=self.num_attention_heads,
            intermediate_sizes=tuple(self.intermediate_sizes),
            vocab_size=self.vocab_size,
            sequence_length=self.max_position_embeddings,
            tied_embeddings=self.tie_word_embeddings,
            rope_theta=self.rope_theta,
            norm_eps=self.rms_norm_eps,
            initializer_range=self.initializer_range,
            mixer=dict(self.mixer or {}),
        )

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def layer_types(self) -> list[str]:
        """What the cache keeps for each layer, as transformers reads it: keys and values, or a state beside them."""
        stateful = architecture(self.architecture).stateful(self.options)
        return [STATE_LAYER if stateful else "full_attention"] * self.num_hidden_layers

    def validate_layer_type(self) -> None:
        """Nothing to check: `layer_types` is derived. transformers would take types from a closed list only."""

    @property
    def options(self) -> Spec:
        """`mixer`, typed and with its defaults filled in, by the registry's entry for this architecture."""
        try:
            return architecture(self.architecture).options.model_validate(self.mixer)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in first["loc"])
            raise ConfigError(
                f"option '{key}' of architecture '{self.architecture}': {first['msg']} (seen: {first['input']!r})"
            ) from None

    def _check(self) -> None:
        width, heads, sizes = self.hidden_size, self.num_attention_heads, self.intermediate_sizes
        if len(sizes) != self.num_hidden_layers:
            raise ConfigError(
                f"{len(sizes)} MLP widths for {self.num_hidden_layers} layers: "
                "give intermediate_sizes one width a layer"
            )
        if any(size < 0 for size in sizes):
            raise ConfigError(f"an MLP width of {min(sizes)}: widths are 0 (no MLP) or more")
        if heads < 1 or width % heads:
            raise ConfigError(f"model width {width} isn't a multiple of {heads} heads: change one of the two")
        if self.head_dim % 2:
            raise ConfigError(
                f"heads of width {self.head_dim} ({width} / {heads}): rotary embeddings turn pairs, so it must be even"
            )
        _ = self.options
