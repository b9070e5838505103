"""From raw text to batches: corpora, the tokenizer, token shards on disk, and the order of training."""
