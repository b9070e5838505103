"""One file an exhibit. `reporting.exhibit` states the contract of its class; `reporting.registry` discovers it."""
