"""How every figure looks, and how it is written: the same data give the same bytes.

Figures are made without pyplot, so nothing global is changed and no window system is needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tlm_repro.architectures.registry import ARCHITECTURES
from tlm_repro.artifacts.files import atomic_path
from tlm_repro.reporting.lazy import np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 180
TOY_STAMP = "toy scale: not evidence for the paper"
STAMP_COLOUR = "#8a3b12"
NEUTRAL = "#5b5b5b"
REFERENCE_COLOUR = "#b5b5b5"  # of reference lines and shaded spans
# Okabe and Ito's palette, which stays distinct with any colour vision; its yellow is left out: too pale on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", ":", "-.")
LOSS = "validation loss (nats/token)"

RC: dict[str, Any] = {
    # seaborn's "whitegrid", without the second that its import takes
    "axes.axisbelow": True,
    "axes.facecolor": "white",
    "axes.grid": True,
    "axes.labelcolor": ".15",
    "axes.spines.bottom": True,
    "axes.spines.left": True,
    "axes.spines.right": True,
    "axes.spines.top": True,
    "figure.facecolor": "white",
    "font.sans-serif": ["Arial", "DejaVu Sans", "Liberation Sans", "Bitstream Vera Sans", "sans-serif"],
    "grid.linestyle": "-",
    "lines.solid_capstyle": "round",
    "patch.edgecolor": "w",
    "patch.force_edgecolor": True,
    "text.color": ".15",
    "xtick.bottom": False,
    "xtick.color": ".15",
    "xtick.direction": "out",
    "xtick.top": False,
    "ytick.color": ".15",
    "ytick.direction": "out",
    "ytick.left": False,
    "ytick.right": False,
    # and our own
    "font.family": "DejaVu Sans",  # comes with matplotlib: text is as wide on every machine
    "font.size": 10,
    "axes.labelsize": 10,
    "axes.titlesize": 10.5,
    "axes.edgecolor": "#8a8a8a",
    "axes.linewidth": 0.8,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "pdf.fonttype": 42,  # text stays text
    "svg.hashsalt": "tlm-repro",
    "mathtext.fontset": "dejavusans",
}
METADATA: dict[str, dict[str, None]] = {
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "png": {"Software": None},
}


@contextlib.contextmanager
def theme() -> Iterator[None]:
    """The look of all figures, for the time of drawing or writing one."""
    import matplotlib as mpl

    with mpl.rc_context(cast(Any, RC)):
        yield


def blank(width: float, height: float, *, toy: bool = False) -> Figure:
    """An empty figure, sizes in inches; `toy` puts the stamp along its lower edge."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    if toy:
        figure.supxlabel(TOY_STAMP, x=0.995, ha="right", fontsize=8.5, style="italic", color=STAMP_COLOUR)
    return figure


def save(figure: Figure, stem: Path) -> list[Path]:
    """Writes `stem`.png, .pdf and .svg, each atomically and without dates; returns the three paths."""
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "pdf", "svg")]
    for path in paths:
        kind = path.suffix[1:]
        with theme(), atomic_path(path) as temporary:
            figure.savefig(temporary, format=kind, dpi=DPI, metadata=METADATA[kind])
    return paths


def perplexity_axis(axes: Axes) -> None:
    """A second y axis, on the right, that reads a loss in nats as a perplexity."""
    second = axes.secondary_yaxis("right", functions=(exponential, logarithm))
    second.set_ylabel("perplexity")
    second.grid(visible=False)


def exponential(loss: Any) -> Any:
    return np.exp(np.clip(loss, -50, 50))  # matplotlib also asks far outside the axis


def logarithm(perplexity: Any) -> Any:
    return np.log(np.clip(perplexity, 1e-20, None))


def architecture_title(name: str) -> str:
    return ARCHITECTURES[name].title if name in ARCHITECTURES else name.replace("_", " ").capitalize()
