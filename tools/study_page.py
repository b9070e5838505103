"""Copies what a configuration's tables, figures and claims are into a folder of documentation, with the report on top.

Usage: python tools/study_page.py CONFIG FOLDER

`snakemake tables figures claims --configfile CONFIG` first. The folder's own README.md stays; `tables/` and `figures/`
are made anew. The report is rendered where it will lie, so that its links hold.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from tlm_repro.config_loading import load
from tlm_repro.grid import expand
from tlm_repro.views import file_name, views

RESULTS = Path("results")
FORMS = {"tables": ("csv", "md", "tex"), "figures": ("svg", "png", "pdf")}


def main(config: Path, folder: Path) -> None:
    grid = expand(load(config))
    for kind, names in (("tables", grid.tables), ("figures", grid.figures)):
        shutil.rmtree(folder / kind, ignore_errors=True)
        (folder / kind).mkdir(parents=True)
        for name in (f"{name}.{form}" for name in names for form in FORMS[kind]):
            shutil.copyfile(RESULTS / kind / name, folder / kind / name)
    for name in ("claims.json", "claims.md"):
        shutil.copyfile(RESULTS / name, folder / name)
    view = RESULTS / "views" / file_name("report", views(grid)["report"])
    figures = [f"--figure={folder / 'figures' / name}.svg" for name in grid.figures]
    subprocess.run(["tlm-repro", "report", f"--view={view}", *figures, f"--out={folder / 'report.html'}"], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
