"""titans-pytorch's models at the configuration nearest to this package's Titans, for `mixers.py`."""

from typing import Any

from torch import Tensor, nn

try:
    import titans_pytorch
except ImportError:
    titans_pytorch = None

MEMORY_HEAD = 64  # width of a memory's head, there and here
SEGMENT, PERSISTENT = 512, 16
LARGEST_STEP = 0.01  # with its own default, 1, losses weren't finite after a few steps


def installed() -> bool:
    return titans_pytorch is not None


class PeerMixer(nn.Module):
    """NeuralMemory in the place of a mixer of ours.

    Renewed, gradients are taken at the weights at each chunk's start, as in the paper; otherwise, as it is by default,
    at those of the sequence's start.
    """

    def __init__(self, width: int, chunk: int, *, renewed: bool) -> None:
        super().__init__()
        self.memory = titans_pytorch.NeuralMemory(
            width,
            chunk_size=chunk,
            batch_size=chunk if renewed else None,
            default_model_kwargs={"depth": 2, "expansion_factor": 4.0},
            **memory_options(width),
        )
        unshare(self)

    def forward(self, hidden: Tensor, *_: Any) -> Tensor:
        return self.memory(hidden)[0]


def memory_options(width: int) -> dict[str, Any]:
    return {
        "dim_head": MEMORY_HEAD,
        "heads": width // MEMORY_HEAD,
        "activation": nn.SiLU(),
        "qk_rmsnorm": True,
        "post_rmsnorm": True,
        "default_step_transform_max_lr": LARGEST_STEP,
    }


def context_transformer(
    *, vocab: int, width: int, layers: int, heads: int, intermediate: int, sequence: int, chunk: int
) -> nn.Module:
    """MemoryAsContextTransformer with a memory in each layer, gradients renewed each chunk, and one residual stream.

    It's called with tokens (B, T + 1) and `return_loss=True`.
    """
    model = titans_pytorch.MemoryAsContextTransformer(
        num_tokens=vocab,
        dim=width,
        depth=layers,
        heads=heads,
        dim_head=width // heads,
        ff_mult=1.5 * (intermediate + 0.5) / width,  # it takes int(2/3 · ff_mult · dim)
        segment_len=min(SEGMENT, sequence),
        num_persist_mem_tokens=PERSISTENT,
        num_residual_streams=1,
        neural_memory_segment_len=chunk,
        neural_memory_batch_size=chunk,
        neural_memory_model=titans_pytorch.MemoryMLP(MEMORY_HEAD, depth=2, expansion_factor=4.0),
        neural_memory_kwargs=memory_options(width),
    )
    unshare(model)
    return model


def unshare(model: nn.Module) -> None:
    """Gives each memory head initial weights of its own.

    In 0.5.5 all heads view one stored tensor (stride 0), which optimisers can't write to: fused AdamW on a CPU ends in
    a segmentation fault.
    """
    for weight in model.parameters():
        weight.data = weight.data.contiguous()
