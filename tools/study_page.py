"""Copies what a configuration's tables, figures and claims are into a folder of documentation, with the report on top.

Usage: python tools/study_page.py CONFIG FOLDER

First `snakemake tables figures claims results/report.html --configfile CONFIG`. The folder's own README.md stays;
`tables/` and `figures/` are made anew. The report is rendered where it will lie, so that its links hold.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from tlm_repro.config.loading import load
from tlm_repro.study.grid import expand
from tlm_repro.study.views import file_name, views

RESULTS = Path("results")
FORMS = {"tables": ("csv", "md", "tex"), "figures": ("svg", "png", "pdf")}


def main(config: Path, folder: Path) -> None:
    grid = expand(load(config))
    shown = {"tables": grid.tables, "figures": grid.figures}
    copied = [f"{kind}/{name}.{form}" for kind, names in shown.items() for name in names for form in FORMS[kind]]
    copied += ["claims.json", "claims.md"]
    view = RESULTS / "views" / file_name("report", views(grid)["report"])
    if lacking := [path for path in (view, *(RESULTS / name for name in copied)) if not path.exists()]:
        targets = "tables figures claims results/report.html"
        sys.exit(
            f"{lacking[0]} and {len(lacking) - 1} more don't exist: `snakemake {targets} --configfile {config}` first"
        )
    for kind in shown:
        shutil.rmtree(folder / kind, ignore_errors=True)
        (folder / kind).mkdir(parents=True)
    for name in copied:
        shutil.copyfile(RESULTS / name, folder / name)
    figures = [f"--figure={folder / 'figures' / name}.svg" for name in grid.figures]
    subprocess.run(["tlm-repro", "report", f"--view={view}", *figures, f"--out={folder / 'report.html'}"], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
