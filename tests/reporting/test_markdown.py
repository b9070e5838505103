"""Labels in Markdown tables."""

import pandas as pd
import pytest

from tlm_repro.reporting import formats
from tlm_repro.reporting.markdown import cell
from tlm_repro.reporting.sheets import Sheet


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("2.79 ± 0.01 [2.77, 2.81] p < 0.01 <= 1", "2.79 ± 0.01 [2.77, 2.81] p < 0.01 <= 1"),
        (r"r(h\ell) \\ ‖MLP‖", r"r(h\ell) \\ ‖MLP‖"),
        ("a|b||c", r"a\|b\|\|c"),
        ("a\\|b", "a\\\\\\|b"),  # an escaped backslash, then an escaped pipe
        ("one\n two\r\nthree\u2028four", "one two three four"),
        ("<img src=x> </td> <!-- <b", "&lt;img src=x> &lt;/td> &lt;!-- &lt;b"),
    ],
)
def test_a_label_is_one_cell(text: str, escaped: str) -> None:
    assert cell(text) == escaped


def test_a_label_breaks_no_table() -> None:
    text = pd.DataFrame({"Allocation|x": ["a|b", "c\nd"], "Loss\n": ["1", "2"]})
    lines = formats.markdown(Sheet("t", "A table.", text, text.map(lambda _: ""), ("Loss\n",))).splitlines()
    table = lines[2:]
    assert [line.count("|") - line.count(r"\|") for line in table] == [3, 3, 3, 3]
    assert table[1].endswith("-:|")
