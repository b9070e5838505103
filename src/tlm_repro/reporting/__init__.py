"""From evaluation files to tables, figures, verdicts on the paper's claims, and one report."""
