"""Heavy modules, imported when they are first used: the workflow imports all exhibits whenever it is parsed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any


class LazyModule:
    """Stands for a module; the first look at one of its names imports it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


if TYPE_CHECKING:
    import matplotlib.ticker as ticker
    import numpy as np
    import pandas as pd
else:
    np, pd, ticker = (LazyModule(name) for name in ("numpy", "pandas", "matplotlib.ticker"))
