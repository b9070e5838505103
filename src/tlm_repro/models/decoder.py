"""The decoder: embedding → layers of [norm → mixer → +, norm → MLP → +] → norm → head, as Hugging Face classes.

The mixer and the feed-forward block come from the registry of architectures. Shapes as in `layers`; V vocabulary.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from tlm_repro.architectures.registry import architecture, load
from tlm_repro.errors import ConfigError
from tlm_repro.models.attention import causal_mask
from tlm_repro.models.cache import past_length
from tlm_repro.models.configuration import TLMConfig
from tlm_repro.models.layers import Context, ResidualProjection, Rotary
from tlm_repro.models.loss import cross_entropy, head_cross_entropy, shifted


class DecoderLayer(GradientCheckpointingLayer):
    """z = h + Mixer(norm(h)), h' = z + MLP(norm(z)), paper Section 2; a width of 0 leaves out the second half."""

    def __init__(self, config: TLMConfig, index: int) -> None:
        super().__init__()
        entry = architecture(config.architecture)
        self.input_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mixer = load(entry.mixer)(config, index)
        self.mlp_norm: nn.Module | None = None
        self.mlp: nn.Module | None = None
        if config.intermediate_sizes[index] > 0:
            self.mlp_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
            self.mlp = load(entry.feed_forward)(config, index)

    def forward(self, hidden: Tensor, context: Context, cache: Cache | None = None) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        hidden = hidden + self.mixer(self.input_norm(hidden), context, cache)
        if self.mlp is not None and self.mlp_norm is not None:
            hidden = hidden + self.mlp(self.mlp_norm(hidden), hidden, context, cache)
        return hidden


class TLMPreTrainedModel(PreTrainedModel):
    config: TLMConfig
    config_class = TLMConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ("DecoderLayer",)
    _supports_sdpa = True
    _can_record_outputs = {"hidden_states": DecoderLayer}  # noqa: RUF012 - the base class's form

    def _init_weights(self, module: nn.Module) -> None:
        """Normal with deviation `initializer_range`, divided by √(2L) where a residual branch ends.

        The paper doesn't say how it initialises: this is GPT-2's way. [ours]
        """
        if isinstance(module, ResidualProjection):
            deviation = self.config.initializer_range / math.sqrt(2 * self.config.num_hidden_layers)
            init.normal_(module.weight, mean=0.0, std=deviation)
        elif callable(own := getattr(module, "initialise", None)):
            own()
        else:
            super()._init_weights(module)


class TLMModel(TLMPreTrainedModel):
    """The decoder without its head."""

    def __init__(self, config: TLMConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config, index) for index in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary = Rotary(config.head_dim, config.rope_theta)
        self.gradient_checkpointing = False
        self.post_init()

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **_: Any,
    ) -> BaseModelOutputWithPast:
        """Hidden states (B, T, D) after the last norm; arguments as in `TLMForCausalLM.forward`."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ConfigError("pass either input_ids or inputs_embeds, exactly one of them")
        hidden = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)
        context = self.context(hidden, attention_mask, position_ids, cache)
        for layer in self.layers:
            hidden = layer(hidden, context, cache=cache)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(hidden), cache=cache)

    def context(self, hidden: Tensor, mask: Tensor | None, positions: Tensor | None, cache: Cache | None) -> Context:
        """What the layers share. Without `positions`, each row counts from its first real token."""
        time, past = hidden.shape[1], past_length(cache)
        padding = given = None
        if mask is not None and mask.ndim == 2:
            if mask.shape[1] != past + time:
                raise ConfigError(
                    f"attention_mask covers {mask.shape[1]} tokens, but there are {past} cached and {time} new ones: "
                    "pass one entry for each of both"
                )
            padding = None if bool(mask.all()) else mask.bool()
        else:
            given = mask
        if positions is None and padding is not None:
            positions = (padding.cumsum(dim=-1) - 1).clamp(min=0)[:, past:]
        elif positions is None and past:
            positions = torch.arange(past, past + time, device=hidden.device)[None]
        return Context(
            rotary=self.rotary.first(time, hidden.device) if positions is None else self.rotary.at(positions),
            padding=None if padding is None else padding[:, past:],
            make_mask=lambda: causal_mask(time, past, padding, hidden.device) if given is None else given,
        )


class TLMForCausalLM(TLMPreTrainedModel, GenerationMixin):
    """The decoder with its language-model head."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012 - the base class's form

    def __init__(self, config: TLMConfig) -> None:
        super().__init__(config)
        self.model = TLMModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        shift_labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits (B, T, V) and, with labels, the mean loss over predicted tokens in nats.

        Args:
            input_ids: (B, T); or inputs_embeds (B, T, D).
            attention_mask: (B, past + T), 0 at padding, on either side.
            cache: keys and values of earlier tokens; `use_cache=True` starts one. Without it nothing is cached.
            labels: (B, T), shifted here: position t is scored against label t + 1; −100 is left out.
            shift_labels: (B, T), the same, already shifted: position t is scored against label t.
            logits_to_keep: only the last so many positions (0: all), or those a tensor names; labels follow.

        In training mode a call with labels leaves `logits` None: the loss is taken slice by slice.
        """
        outputs = self.model(input_ids, attention_mask, position_ids, cache, inputs_embeds, use_cache, **kwargs)
        kept = logits_to_keep if isinstance(logits_to_keep, Tensor) else slice(-logits_to_keep, None)
        hidden = outputs.last_hidden_state[:, kept]
        targets = shifted(labels) if shift_labels is None and labels is not None else shift_labels
        targets = None if targets is None else targets[:, kept]
        loss = logits = None
        if targets is not None and self.training and torch.is_grad_enabled():
            loss = head_cross_entropy(hidden, self.lm_head.weight, targets)
        else:
            logits = self.lm_head(hidden)
            loss = cross_entropy(logits, targets) if targets is not None else None
        return CausalLMOutputWithPast(
            loss=loss, logits=logits, cache=outputs.cache, hidden_states=outputs.hidden_states
        )
