"""Where tests stand: folders mirror the source, the tiers' table is true, and the fast tier is guarded."""

import subprocess

import pytest
from tiers import TESTS, TIERS, TOGETHER, group_of, tier_of

SOURCE = TESTS.parent / "src/tlm_repro"
OWN = {"cluster", "golden", "support", "workflow"}  # of the tests alone


def test_folders_mirror_the_source():
    packages = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*") if (path / "__init__.py").exists()}
    folders = {path.parent.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")} - {"."}
    assert folders - OWN <= packages


def test_each_path_of_the_tables_exists():
    assert [path for path in [*TIERS, *TOGETHER] if not (TESTS / path).exists()] == []


def test_the_longest_path_counts():
    assert tier_of(TESTS / "data/test_shards.py") == "process"
    assert tier_of(TESTS / "data/test_batches.py") == "fast"
    assert tier_of(TESTS / "new/test_new.py") == "fast"


def test_a_group_is_a_file_or_a_folder():
    assert group_of(TESTS / "data/test_shards.py") == "data/test_shards.py"
    assert {group_of(TESTS / f"sharing/test_{name}.py") for name in ("pull", "s3")} == {"sharing"}


def test_a_fast_test_starts_no_process():
    with pytest.raises(pytest.fail.Exception, match=r"A fast test starts a process\. Mark it `process`"):
        subprocess.run(["true"])


def test_a_library_may_start_one_when_it_is_imported(tmp_path, monkeypatch):
    """Torch built for CUDA asks ldconfig, Matplotlib in a new home fc-list."""
    library = tmp_path / "site-packages/asks_for_fonts.py"
    library.parent.mkdir()
    library.write_text(
        "import subprocess\nCODE = subprocess.run(['true']).returncode\n\ndef run(): subprocess.run(['true'])\n"
    )
    monkeypatch.syspath_prepend(library.parent)
    import asks_for_fonts

    assert asks_for_fonts.CODE == 0
    with pytest.raises(pytest.fail.Exception, match="A fast test starts a process"):
        asks_for_fonts.run()


def test_a_fast_test_imports_nothing_heavy():
    with pytest.raises(pytest.fail.Exception, match="A fast test imports transformers"):
        import transformers.no_such_module  # noqa: F401


@pytest.mark.process
def test_a_test_of_another_tier_may_start_one():
    assert subprocess.run(["true"]).returncode == 0
