"""`Decoder` and `LanguageModel` as transformers' classes: loading, saving, generation. Shapes as in `mixer`."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils.deprecation import deprecate_kwarg
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from tlm_repro.models.decoder import Decoder, DecoderLayer, LanguageModel, initialise_own
from tlm_repro.models.hugging_face.cache import CacheAdapter
from tlm_repro.models.hugging_face.configuration import TLMConfig


class TLMPreTrainedModel(PreTrainedModel):
    config: TLMConfig
    config_class = TLMConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ("DecoderLayer",)
    _supports_sdpa = True
    _can_record_outputs = {"hidden_states": DecoderLayer}  # noqa: RUF012 - the base class's form

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """As the decoder initialises it, but for parameters that transformers has loaded from a file."""
        own = module.parameters()
        loaded = [(weight, weight.clone()) for weight in own if getattr(weight, "_is_hf_initialized", False)]
        initialise_own(module, self.config.to_spec())
        for weight, value in loaded:
            weight.copy_(value)


class TLMModel(Decoder, TLMPreTrainedModel):
    """The decoder without its head."""

    def __init__(self, config: TLMConfig) -> None:
        PreTrainedModel.__init__(self, config)
        self.build(config.to_spec())
        PreTrainedModel.post_init(self)

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
        if use_cache and cache is None:
            cache = DynamicCache(config=self.config)
        adapter = None if cache is None else CacheAdapter(cache)
        hidden = super().forward(input_ids, attention_mask, position_ids, adapter, inputs_embeds)
        return BaseModelOutputWithPast(last_hidden_state=hidden, cache=cache)


class TLMForCausalLM(LanguageModel, TLMPreTrainedModel, GenerationMixin):
    """The decoder with its language-model head."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012 - the base class's form

    def __init__(self, config: TLMConfig) -> None:
        PreTrainedModel.__init__(self, config)
        self.spec = config.to_spec()
        self.model = TLMModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        PreTrainedModel.post_init(self)

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
        """`LanguageModel.forward` with a cache of transformers; `use_cache=True` starts one."""
        outputs = self.model(input_ids, attention_mask, position_ids, cache, inputs_embeds, use_cache, **kwargs)
        loss, logits = self.predict(outputs.last_hidden_state, labels, shift_labels, logits_to_keep)
        return CausalLMOutputWithPast(
            loss=loss, logits=logits, cache=outputs.cache, hidden_states=outputs.hidden_states
        )
