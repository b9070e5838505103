"""Zero-shot benchmarks through lm-eval: tasks, their items and the harness."""
