"""Text in Markdown tables."""

import re

LINES = re.compile(r"\s*[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]\s*")
PIPE = re.compile(r"(\\*)\|")
TAG = re.compile(r"<(?=[A-Za-z/!?])")


def cell(text: str) -> str:
    """The text as one cell of a table: on one line, with its pipes escaped and without HTML tags."""
    line = LINES.sub(" ", text)
    return TAG.sub("&lt;", PIPE.sub(r"\1\1\|", line))
