"""The decoder: embedding → layers of [norm → mixer → +, norm → MLP → +] → norm → head.

The mixer and the feed-forward block come from the registry of architectures. Everything here is plain torch;
`hugging_face.decoder` wraps it for transformers. Shapes as in `mixer`; V vocabulary.
"""

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tlm_repro.architectures.registry import architecture, check_model, load
from tlm_repro.errors import ConfigError
from tlm_repro.models.attention import causal_mask
from tlm_repro.models.cache import Cache, past_length
from tlm_repro.models.loss import cross_entropy, head_cross_entropy, shift_labels_left
from tlm_repro.models.mixer import Block, Context, ResidualProjection, blocks
from tlm_repro.models.rotary import Rotary
from tlm_repro.spec.run import ModelSpec


class DecoderLayer(nn.Module):
    """z = h + Mixer(norm(h)), h' = z + MLP(norm(z)), paper Section 2; a width of 0 leaves out the second half.

    With `gradient_checkpointing` a training pass keeps the layer's input alone and computes the layer again on the way
    back; a cache is ignored then. (transformers looks for an attribute of this name.)

    Raises:
        ConfigError: a block keeps a state that the architecture's entry in the registry doesn't declare.
    """

    gradient_checkpointing = False

    def __init__(self, model: ModelSpec, index: int) -> None:
        super().__init__()
        entry = architecture(model.architecture)
        self.input_norm = nn.RMSNorm(model.model_width, eps=model.norm_eps)
        self.mixer = load(entry.mixer)(model, index)
        self.mlp_norm: nn.Module | None = None
        self.mlp: nn.Module | None = None
        if model.intermediate_sizes[index] > 0:
            self.mlp_norm = nn.RMSNorm(model.model_width, eps=model.norm_eps)
            self.mlp = load(entry.feed_forward)(model, index)
        stateful = [type(block).__name__ for block in blocks(self) if block.keeps_state]
        if stateful and not entry.keeps_state(model):
            raise ConfigError(
                f"architecture '{model.architecture}': its {stateful[0]} keeps a state in the cache, and keeps_state "
                "returns False. Let keeps_state return True for these options"
            )

    def forward(self, hidden: Tensor, context: Context, cache: Cache | None = None) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        if self.gradient_checkpointing and self.training and torch.is_grad_enabled():
            # Nothing in a layer is random, so there is no generator to restore for its second pass.
            return checkpoint(self.transform, hidden, context, None, use_reentrant=False, preserve_rng_state=False)
        return self.transform(hidden, context, cache)

    def transform(self, hidden: Tensor, context: Context, cache: Cache | None) -> Tensor:
        hidden = hidden + self.mixer(self.input_norm(hidden), context, cache)
        if self.mlp is not None and self.mlp_norm is not None:
            hidden = hidden + self.mlp(self.mlp_norm(hidden), hidden, context, cache)
        return hidden


class Decoder(nn.Module):
    """The decoder without its head, initialised. Raises ConfigError where values of `model` don't fit together."""

    def __init__(self, model: ModelSpec) -> None:
        super().__init__()
        self.build(model)
        initialise(self, model)

    def build(self, model: ModelSpec) -> None:
        """Makes the modules, as torch initialises them."""
        check_model(model)
        self.embed_tokens = nn.Embedding(model.vocab_size, model.model_width)
        self.layers = nn.ModuleList(DecoderLayer(model, index) for index in range(model.layers))
        self.norm = nn.RMSNorm(model.model_width, eps=model.norm_eps)
        self.rotary = Rotary(model.head_dim, model.rope_theta)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """Hidden states (B, T, D) after the last norm; arguments as in `LanguageModel.forward`."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ConfigError("pass either input_ids or inputs_embeds, exactly one of them")
        hidden = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        context = self.context(hidden, attention_mask, position_ids, cache)
        for layer in self.layers:
            hidden = layer(hidden, context, cache)
        return self.norm(hidden)

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
        if positions is None:
            rotary = self.rotary.leading_rotations(time, hidden.device)
        else:
            rotary = self.rotary.rotations(positions)
        return Context(
            rotary=rotary,
            padding=None if padding is None else padding[:, past:],
            make_mask=lambda: causal_mask(time, past, padding, hidden.device) if given is None else given,
        )


class Prediction(NamedTuple):
    """loss: mean over the predicted tokens, nats; logits: (B, T, V). Each is None where it wasn't computed."""

    loss: Tensor | None
    logits: Tensor | None


class LanguageModel(nn.Module):
    """The decoder with its language-model head, initialised.

    A seed of torch's generator determines the weights: modules draw in the order of their construction, first as torch
    initialises them, then by `initialise`.
    """

    def __init__(self, model: ModelSpec) -> None:
        super().__init__()
        self.spec = model
        self.model = Decoder(model)
        self.lm_head = nn.Linear(model.model_width, model.vocab_size, bias=False)
        initialise(self.lm_head, model)
        self.tie_head()

    def tie_head(self) -> None:
        """Makes the head share the embedding's weights where the spec says so."""
        if self.spec.tied_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        shift_labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
    ) -> Prediction:
        """Logits and, with labels, the loss.

        Args:
            input_ids: (B, T); or inputs_embeds (B, T, D).
            attention_mask: (B, past + T), 0 at padding, on either side.
            position_ids: (1 or B, T); by default each row counts its real tokens.
            cache: keys, values and states of earlier tokens; without it nothing is cached.
            labels: (B, T), shifted here: position t is scored against label t + 1; −100 is left out.
            shift_labels: (B, T), the same, already shifted: position t is scored against label t.
            logits_to_keep: only the last so many positions (0: all), or those a tensor names; labels follow.

        In training mode a call with labels leaves `logits` None: the loss is taken slice by slice.
        """
        hidden = self.model(input_ids, attention_mask, position_ids, cache, inputs_embeds)
        return self.predict(hidden, labels, shift_labels, logits_to_keep)

    def predict(
        self, hidden: Tensor, labels: Tensor | None, shift_labels: Tensor | None, logits_to_keep: int | Tensor
    ) -> Prediction:
        """What the head makes of the decoder's hidden states (B, T, D); arguments as in `forward`."""
        kept = logits_to_keep if isinstance(logits_to_keep, Tensor) else slice(-logits_to_keep, None)
        hidden = hidden[:, kept]
        targets = shift_labels_left(labels) if shift_labels is None and labels is not None else shift_labels
        targets = None if targets is None else targets[:, kept]
        if targets is not None and self.training and torch.is_grad_enabled():
            return Prediction(head_cross_entropy(hidden, self.lm_head.weight, targets), None)
        logits = self.lm_head(hidden)
        return Prediction(cross_entropy(logits, targets) if targets is not None else None, logits)

    @property
    def layers(self) -> list[DecoderLayer]:
        """The decoder's layers, first to last."""
        return [layer for layer in self.model.layers if isinstance(layer, DecoderLayer)]

    def checkpoint_activations(self) -> None:
        """Keeps only each layer's input in training, and computes the layer again for its gradients."""
        for layer in self.layers:
            layer.gradient_checkpointing = True


def initialise(module: nn.Module, model: ModelSpec) -> None:
    """Initialises `module` and all in it, children before the modules that contain them."""
    module.apply(functools.partial(initialise_own, model=model))


def initialise_own(module: nn.Module, model: ModelSpec) -> None:
    """Initialises what `module` holds itself: normal with deviation `initializer_range`.

    Where a residual branch ends, the deviation is divided by √(2L). The paper doesn't say how it initialises; this is
    GPT-2's way. [ours]
    """
    if isinstance(module, Block):
        module.initialise()
    elif isinstance(module, ResidualProjection):
        nn.init.normal_(module.weight, std=model.initializer_range / math.sqrt(2 * model.layers))
    elif isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=model.initializer_range)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.RMSNorm) and module.weight is not None:
        nn.init.ones_(module.weight)
