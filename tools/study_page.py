"""Copies the tables, figures and claims of a configuration into a folder of documentation and writes its report there.

Usage: python tools/study_page.py CONFIG FOLDER

Run `snakemake tables figures claims results/report.html --configfile CONFIG` first. `tables/` and `figures/` of the
folder are replaced; its README.md stays. The report is written in its final place, so that its links hold.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from tlm_repro.config.loading import load
from tlm_repro.reporting.registry import figures as figures_of
from tlm_repro.reporting.registry import file_name, tables, views
from tlm_repro.study.grid import expand

RESULTS = Path("results")
FORMS = {"tables": "md", "figures": "png"}  # the forms that a browser or GitHub shows


def main(config: Path, folder: Path) -> None:
    grid = expand(load(config))
    shown = {"tables": tables(grid), "figures": figures_of(grid)}
    copied = [f"{kind}/{name}.{FORMS[kind]}" for kind, names in shown.items() for name in names]
    copied += ["claims.json", "claims.md"]
    drawings = [RESULTS / f"figures/{name}.svg" for name in shown["figures"]]
    view = RESULTS / "views" / file_name("report", views(grid)["report"])
    if missing := [path for path in (view, *(RESULTS / name for name in copied), *drawings) if not path.exists()]:
        targets = "tables figures claims results/report.html"
        sys.exit(
            f"{missing[0]}: missing, with {len(missing) - 1} other files. "
            f"Run `snakemake {targets} --configfile {config}` first."
        )
    for kind in shown:
        shutil.rmtree(folder / kind, ignore_errors=True)
        (folder / kind).mkdir(parents=True)
    for name in copied:
        shutil.copyfile(RESULTS / name, folder / name)
    links = [f"--link={form}" for form in FORMS.values()]
    figures = [f"--figure={path}" for path in drawings]
    report = folder / "report.html"
    subprocess.run(["tlm-repro", "report", f"--view={view}", *figures, *links, f"--out={report}"], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
