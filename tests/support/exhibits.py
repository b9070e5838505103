"""What tests of exhibits share: the numbers of an allocation's cell, and evidence from results and views."""

from typing import Any

from tlm_repro.allocation.curves import CURVES
from tlm_repro.allocation.widths import label as allocation_label
from tlm_repro.allocation.widths import resolve
from tlm_repro.records.view import ExperimentView
from tlm_repro.reporting.evidence import Evidence
from tlm_repro.reporting.results import Results


def numbers(allocation: str, **others: float) -> dict[str, Any]:
    """The curve and its parameters that the grid writes beside an allocation's label; `others` aren't in the label."""
    curve = max((name for name in CURVES if f"{allocation}-".startswith(f"{name}-")), key=len)
    texts = [text for text in allocation.removeprefix(curve).split("-") if text]
    parameters: dict[str, Any] = dict(others)
    for name, parameter in CURVES[curve].parameters.items():
        if parameter.labelled:
            count = len(parameter.default) if isinstance(parameter.default, tuple) else 1
            values, texts = [float(text) for text in texts[:count]], texts[count:]
            parameters[name] = values if isinstance(parameter.default, tuple) else values[0]
    for text in texts:
        symbols = {parameter.symbol or name: name for name, parameter in CURVES[curve].parameters.items()}
        symbol = max((symbol for symbol in symbols if text.startswith(symbol)), key=len)
        parameters[symbols[symbol]] = float(text.removeprefix(symbol))
    assert others or allocation_label(curve, **parameters) == allocation
    return {"curve": curve, "parameters": resolve(curve, parameters)[1]}


def evidence(results: Results, *views: ExperimentView, **more: Any) -> Evidence:
    """Evidence with these experiments, at toy scale where one of them is."""
    toy = any(view.toy for view in views)
    return Evidence(results, {view.experiment: view for view in views}, **{"toy": toy, **more})
