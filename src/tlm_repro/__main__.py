"""`python -m tlm_repro`, for launchers that start a module."""

from tlm_repro.cli import main

main()
