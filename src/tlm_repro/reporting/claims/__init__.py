"""The paper's claims: the registry, the rule of each, and verdicts."""
