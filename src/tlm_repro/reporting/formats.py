"""Writers of tables: CSV with full precision; Markdown and LaTeX of the sheet that people read."""

from __future__ import annotations

import re
from pathlib import Path

from tlm_repro.artifacts.files import write_text
from tlm_repro.reporting.lazy import pd
from tlm_repro.reporting.markdown import cell
from tlm_repro.reporting.published import NOT_PUBLISHED
from tlm_repro.reporting.sheets import Sheet

LATEX_HEAD = """\
% Needs \\usepackage{booktabs} and \\usepackage[table]{xcolor}, in the preamble. To compile it alone:
% \\documentclass{article}\\usepackage{booktabs}\\usepackage[table]{xcolor}\\begin{document}\\input{FILE}\\end{document}
\\providecolor{better}{HTML}{BFE3C0}
\\providecolor{better-unclear}{HTML}{E6F3E6}
\\providecolor{worse}{HTML}{F4BFB8}
\\providecolor{worse-unclear}{HTML}{FBE7E4}
"""
LATEX_TEXT = {
    "±": r"$\pm$",
    "−": "$-$",
    "↓": r"$\downarrow$",
    "↑": r"$\uparrow$",
    "ρ": r"$\rho$",
    "÷": r"$\div$",
    "‖": r"$\|$",
    "†": r"$\dagger$",
    f"& {NOT_PUBLISHED}": "& n/p",
}
INTERVAL = re.compile(r"([+−]?\d+\.\d) \[(.+?)\]")


def csv(frame: pd.DataFrame) -> str:
    """Full precision; a published value that isn't there says so, any other missing one is empty."""
    published = [column for column in frame.columns if column.startswith("published_") and column != "published_scale"]
    text = frame.astype(dict.fromkeys(published, object))
    text[published] = text[published].where(frame[published].notna(), NOT_PUBLISHED)
    return text.to_csv(index=False, lineterminator="\n")


def markdown(table: Sheet) -> str:
    align = ["right" if column in table.numeric else "left" for column in table.text.columns]
    text = table.text.map(cell).rename(columns=cell)
    body = text.to_markdown(index=False, colalign=align, disable_numparse=True)
    return f"{table.caption}\n\n{body}\n"


def latex(table: Sheet) -> str:
    """A `table` environment with booktabs rules and shaded cells; its first lines say which packages it needs."""
    absent = bool((table.text == NOT_PUBLISHED).any(axis=None))
    tones = table.tones.map(lambda shade: f"cellcolor:{{{shade}}}" if shade else "")
    styler = table.text.style.hide(axis="index").format(escape="latex").format_index(escape="latex", axis=1)
    body = styler.apply(lambda _: tones, axis=None).to_latex(
        hrules=True,
        column_format="".join("r" if column in table.numeric else "l" for column in table.text.columns),
        caption=table.caption.replace("%", r"\%") + (" n/p: not published here." if absent else ""),
        label=f"tab:{table.name}",
        position_float="centering",
    )
    body = INTERVAL.sub(r"\\shortstack{\1\\\\{}[\2]}", body)
    for text, command in LATEX_TEXT.items():
        body = body.replace(text, command)
    wide = len(table.text.columns) > 9
    size = r"\tiny\setlength{\tabcolsep}{2pt}" if wide else r"\small\setlength{\tabcolsep}{4pt}"
    return LATEX_HEAD + body.replace("\\centering", f"\\centering{size}", 1)


def write(frame: pd.DataFrame, table: Sheet, stem: Path) -> list[Path]:
    """Writes `stem`.csv, .md and .tex, each atomically, and returns their paths."""
    texts = {"csv": csv(frame), "md": markdown(table), "tex": latex(table)}
    paths = {suffix: stem.with_name(f"{stem.name}.{suffix}") for suffix in texts}
    for suffix, text in texts.items():
        write_text(paths[suffix], text)
    return list(paths.values())
