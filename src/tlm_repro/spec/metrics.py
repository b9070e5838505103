"""The names of metrics, as evaluation files and tables use them."""

ACCURACIES = ("lambada_acc", "piqa", "hellaswag", "winogrande", "arc_easy", "arc_challenge", "siqa", "boolq")


MAIN_METRICS = ("wikitext_ppl", "lambada_ppl", *ACCURACIES, "avg")


PERPLEXITIES = ("val_ppl", "wikitext_ppl", "lambada_ppl")


NEEDLES = "niah_"  # metrics `niah_<task>_<length>`: the share of the needles found, 0 to 1
