"""What lm-eval's stock tasks read, written down apart from the code under test."""

# Data set, configuration and split that lm-eval 0.4.13 scores, by task.
HUB: dict[str, tuple[str, str | None, str]] = {
    "wikitext": ("EleutherAI/wikitext_document_level", "wikitext-2-raw-v1", "test"),
    "lambada_openai": ("EleutherAI/lambada_openai", "default", "test"),
    "piqa": ("baber/piqa", None, "validation"),
    "hellaswag": ("Rowan/hellaswag", None, "validation"),
    "winogrande": ("allenai/winogrande", "winogrande_xl", "validation"),
    "arc_easy": ("allenai/ai2_arc", "ARC-Easy", "test"),
    "arc_challenge": ("allenai/ai2_arc", "ARC-Challenge", "test"),
    "social_iqa": ("lighteval/siqa", None, "validation"),
    "boolq": ("aps/super_glue", "boolq", "validation"),
}
