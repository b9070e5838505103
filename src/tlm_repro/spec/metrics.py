"""The names of metrics, as evaluation files and tables use them."""

from tlm_repro.spec.benchmarks import PAPER_BENCHMARKS

ACCURACIES = tuple(benchmark.column for benchmark in PAPER_BENCHMARKS if benchmark.scale == "percent")
MAIN_METRICS = (*(benchmark.column for benchmark in PAPER_BENCHMARKS), "avg")  # `avg`: the mean of ACCURACIES
PERPLEXITIES = ("val_ppl", *(benchmark.column for benchmark in PAPER_BENCHMARKS if benchmark.scale == "perplexity"))
NEEDLES = "niah_"  # metrics `niah_<task>_<length>`: the share of the needles found, 0 to 1
