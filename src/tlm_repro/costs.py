"""Parameters and FLOPs of mixers and feed-forward blocks in closed form, one layer each. No torch here.

FLOPs are those of matrix products and convolutions, two a multiply-add, of one forward pass of one sequence; they are
what torch's own counter counts. Shapes: d model width, T time, N memory head width, C chunk, P persistent tokens.
"""

from tlm_repro.options import HopeOptions, TitansOptions, level_widths, memory_heads
from tlm_repro.spec import ModelSpec

CONVOLUTION = 4  # taps of the depthwise convolution over queries, keys and values


def swiglu_parameters(model: ModelSpec, width: int) -> int:
    """Gate, up and down maps, no bias: 3·d·width."""
    return 3 * model.model_width * width


def swiglu_flops(model: ModelSpec, width: int, time: int) -> int:
    """Every weight takes part in one multiply-add a token."""
    return 2 * time * swiglu_parameters(model, width)


def attention_parameters(model: ModelSpec) -> int:
    """Query, key, value and output projections, no bias: 4·d²."""
    return 4 * model.model_width**2


def attention_flops(model: ModelSpec, time: int) -> int:
    """Four d×d projections and the full T×T scores and mixture, two FLOPs a multiply-add."""
    return 2 * time * attention_parameters(model) + 4 * time * time * model.model_width


def gated_attention_parameters(model: ModelSpec) -> int:
    """Attention and one more d×d map, for the output gate (arXiv 2505.06708, position G1)."""
    return attention_parameters(model) + model.model_width**2


def gated_attention_flops(model: ModelSpec, time: int) -> int:
    return attention_flops(model, time) + 2 * time * model.model_width**2


def titans_parameters(model: ModelSpec) -> int:
    """The memory and its projections, the output map, and what the variant adds."""
    options, width = TitansOptions.from_values(model.mixer, "options of titans"), model.model_width
    head, heads = options.memory_head_dim, memory_heads(width, options.memory_head_dim)
    fast = head if options.depth == 1 else 2 * options.expansion * head  # ÷ d, over all heads
    memory = 3 * width**2 + 3 * width * CONVOLUTION + 3 * heads * (width + 1) + width * fast + 2 * width
    if options.variant == "lmm":
        return memory + 2 * width**2
    attention = 3 * width**2 + options.persistent * width + width
    return memory + attention + width**2 + (width if options.variant == "mac" else 0)


def titans_flops(model: ModelSpec, time: int) -> int:
    options, width = TitansOptions.from_values(model.mixer, "options of titans"), model.model_width
    if options.variant == "lmm":
        return _memory_flops(options, width, time) + 4 * time * width**2
    persistent = 4 * options.persistent * width**2
    if options.variant == "mag":
        first, more = min(time, options.window), -(-max(0, time - options.window) // options.window)
        scores = (options.persistent + first) ** 2 + more * options.window * (options.persistent + 2 * options.window)
        attention = 6 * time * width**2 + persistent + 4 * scores * width
        return _memory_flops(options, width, time) + attention + 2 * time * width**2
    segments = sum(_segment_flops(options, width, tokens) for tokens in _pieces(time, options.segment))
    return segments - _write_flops(options, width, _pieces(time, options.segment)[-1])


def _segment_flops(options: TitansOptions, width: int, time: int) -> int:
    """One segment of `mac`: recall, attention, memory and output map; its last chunk is written for the next one."""
    recall = 2 * time * width * (width + CONVOLUTION) + _read_flops(options, width, time)
    keys = options.persistent + 2 * time
    attention = 10 * time * width**2 + 4 * options.persistent * width**2 + 4 * time * keys * width
    memory = _memory_flops(options, width, time) + _write_flops(options, width, time)
    return recall + attention + memory + 2 * time * width**2


def _memory_flops(options: TitansOptions, width: int, time: int) -> int:
    heads = memory_heads(width, options.memory_head_dim)
    projections = 2 * time * (3 * width * (width + CONVOLUTION) + 3 * heads * width)
    chunks = sum(_chunk_flops(options, width, tokens) for tokens in _pieces(time, options.chunk))
    return projections + chunks - _write_flops(options, width, time)


def _write_flops(options: TitansOptions, width: int, time: int) -> int:
    """New weights and momentum after the last of the chunks of `time` tokens: nobody reads the sequence's last ones."""
    return 2 * _read_flops(options, width, _pieces(time, options.chunk)[-1])


def _read_flops(options: TitansOptions, width: int, time: int) -> int:
    """All fast weights of all heads times one vector a token."""
    head = options.memory_head_dim
    return 2 * time * width * (head if options.depth == 1 else 2 * options.expansion * head)


def _chunk_flops(options: TitansOptions, width: int, time: int) -> int:
    """One chunk of all heads: errors, reads in the dual form, new weights and momentum, the rates' products."""
    head, heads = options.memory_head_dim, memory_heads(width, options.memory_head_dim)
    hidden = options.expansion * head
    once = _read_flops(options, width, time)
    errors = once if options.depth == 1 else once + once // 2  # the last layer's error goes back through it
    pairs = 4 * time**2 * (head if options.depth == 1 else head + hidden) * heads
    rates = 2 * time**3 + 2 * time**2
    return errors + 4 * once + pairs + rates * heads


def continuum_parameters(model: ModelSpec, width: int) -> int:
    """One SwiGLU's, split over the levels, and the rate maps of those that change within the sequence."""
    options = HopeOptions.from_values(model.mixer, "options of hope_attention")
    level_widths(options, width)  # a width that doesn't hold them is found before any work
    return swiglu_parameters(model, width) + options.fast_levels * 3 * (model.model_width + 1)


def continuum_flops(model: ModelSpec, width: int, time: int) -> int:
    """A fast level is read as any other; before the last chunk, its errors, weights and momentum come on top."""
    options = HopeOptions.from_values(model.mixer, "options of hope_attention")
    total = swiglu_flops(model, width, time)
    parts = level_widths(options, width)
    for part, chunk in list(zip(parts, options.periods, strict=True))[: options.fast_levels]:
        *written, _ = _pieces(time, chunk)
        total += 10 * 2 * sum(written) * model.model_width * part + 2 * time * 3 * model.model_width
        total += sum(2 * tokens**2 + 2 * tokens for tokens in _pieces(time, chunk))
    return total


def no_sums(_model: ModelSpec, _width: int) -> int:
    """Every parameter takes a step at every step of the run: no gradient waits for one."""
    return 0


def continuum_sums(model: ModelSpec, width: int) -> int:
    """Parameters whose gradients are summed up until their level's next optimiser step."""
    options = HopeOptions.from_values(model.mixer, "options of hope_attention")
    if options.update != "optimizer":
        return 0
    parts = zip(level_widths(options, width), options.periods, strict=True)
    return sum(swiglu_parameters(model, part) for part, period in parts if period > 1)


def _pieces(time: int, length: int) -> list[int]:
    whole, rest = divmod(time, length)
    return [length] * whole + ([rest] if rest else [])
