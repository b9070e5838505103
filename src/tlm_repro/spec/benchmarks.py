"""The benchmarks of Table 2: the lm-eval metric behind each column, and how the column is shown. No lm-eval import."""

from dataclasses import dataclass
from typing import Literal

Direction = Literal["higher", "lower"]
Scale = Literal["percent", "perplexity", "plain"]

PERPLEXITY_METRICS = ("perplexity", "word_perplexity", "byte_perplexity")
UNITS: dict[Scale, str] = {"percent": " %", "perplexity": " ppl", "plain": ""}
ARROWS: dict[Direction, str] = {"higher": "↑", "lower": "↓"}


def metric_scale(metric: str) -> Scale:
    """How values of an lm-eval metric are shown and compared.

    `percent`: shares in [0, 1], shown in percent, compared in points; `perplexity`: shown as it is, compared in nats;
    `plain`: shown and compared as lm-eval gives it.

    Args:
        metric: lm-eval's name, with or without its filter: `acc_norm`, `exact_match,strict-match`.
    """
    name = metric.partition(",")[0]
    if name in PERPLEXITY_METRICS:
        return "perplexity"
    return "percent" if name.startswith("acc") or name == "exact_match" else "plain"


@dataclass(frozen=True)
class Benchmark:
    """One column: its name in evaluation files and tables, its title, and the metric of an lm-eval task in it.

    `direction` says which values are better.
    """

    column: str
    title: str
    task: str
    metric: str
    direction: Direction

    @property
    def scale(self) -> Scale:
        return metric_scale(self.metric)

    @property
    def heading(self) -> str:
        """Title, unit and direction, as tables show them: `PIQA % ↑`."""
        return f"{self.title}{UNITS[self.scale]} {ARROWS[self.direction]}"


# In the order of Table 2. It names the benchmarks only; the metrics are those in the column headers of the same
# authors' earlier papers (Titans, arXiv 2501.00663, Table 1). A column's name is also its name in
# reporting/reference/table2_main.csv.
PAPER_BENCHMARKS = (
    Benchmark("wikitext_ppl", "WikiText", "wikitext", "word_perplexity", "lower"),
    Benchmark("lambada_ppl", "LAMBADA", "lambada_openai", "perplexity", "lower"),
    Benchmark("lambada_acc", "LAMBADA", "lambada_openai", "acc", "higher"),
    Benchmark("piqa", "PIQA", "piqa", "acc", "higher"),
    Benchmark("hellaswag", "HellaSwag", "hellaswag", "acc_norm", "higher"),
    Benchmark("winogrande", "WinoGrande", "winogrande", "acc", "higher"),
    Benchmark("arc_easy", "ARC-e", "arc_easy", "acc", "higher"),
    Benchmark("arc_challenge", "ARC-c", "arc_challenge", "acc_norm", "higher"),
    Benchmark("siqa", "SIQA", "social_iqa", "acc", "higher"),
    Benchmark("boolq", "BoolQ", "boolq", "acc", "higher"),
)
PAPER_TASKS = tuple(dict.fromkeys(benchmark.task for benchmark in PAPER_BENCHMARKS))
