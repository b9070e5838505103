"""One file an exhibit: its class is found by itself (`reporting.registry`), its contract is `reporting.exhibit`."""
