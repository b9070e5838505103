"""The trees of products that DVC versions: adding products, joining two versions, pushing.

`dvc commit` records a folder as it is: it would add unfinished products and drop products that weren't pulled. Here
only the given products are added, and everything else in the tree stays. DVC hashes, stores and transfers the files.
"""

import contextlib
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tlm_repro.errors import SharingError
from tlm_repro.sharing.products import Product, Stage

if TYPE_CHECKING:
    from dvc.output import Output
    from dvc.repo import Repo

LOCK = "dvc.lock"
REPOSITORY_LIMIT = 5_000_000  # bytes of a remote inside the repository, where git keeps every version forever


@dataclass
class Change:
    """The change of a tree: paths of products or, when two versions are joined, of files."""

    added: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    conflicting: list[str] = field(default_factory=list)  # in the tree with other contents, which were kept
    unstable: list[str] = field(default_factory=list)  # changed while they were read, and skipped


@contextlib.contextmanager
def open_repository(root: Path) -> Iterator["Repo"]:
    """A DVC repository, locked against other DVC commands.

    Raises:
        SharingError: it isn't a DVC repository, another DVC command holds the lock, or DVC fails otherwise.
    """
    from dvc.exceptions import DvcException
    from dvc.repo import Repo, lock_repo

    logging.getLogger("dvc").setLevel(logging.WARNING)
    try:
        with Repo(str(root)) as repo, lock_repo(repo):
            yield repo
    except DvcException as error:
        text = " ".join(str(error).split())
        raise SharingError(f"DVC: {text}: run the same command again to finish") from error


def output_of(repo: "Repo", name: str) -> "Output":
    """The only output of a stage."""
    stage = repo.stage.load_one(str(Path(repo.root_dir) / "dvc.yaml"), name)
    if len(stage.outs) != 1:
        raise SharingError(f"stage '{name}' of dvc.yaml must have one output: restore it with `git checkout dvc.yaml`")
    return stage.outs[0]


def contents(out: "Output") -> Any:
    """The tree that dvc.lock records, as a trie of path parts → (meta, hash). It is fetched if it isn't cached."""
    from dvc_data.hashfile.tree import Tree

    if not out.hash_info:
        return Tree().as_trie()
    tree = out.get_dir_cache()
    if tree is None:
        raise SharingError(
            f"the list of files of {out} ({out.hash_info.value}) is neither in DVC's cache nor in its remote: "
            f"run `dvc fetch {out.stage.addressing}` to see why"
        )
    return tree.as_trie()


def file_names(out: "Output") -> set[str]:
    """Paths, below the tree's folder, of all files in the tree."""
    return {"/".join(key) for key in contents(out)}


def add(out: "Output", products: Iterable[Product], *, replace: bool = False) -> Change:
    """Adds products to DVC's cache and to the tree. `write_stage` then writes the tree to dvc.lock.

    A product that is in the tree with other contents is left as published, unless `replace`.
    """
    change = Change()
    trie, size = contents(out), out.meta.size if out.hash_info else 0
    for product in products:
        items = _store_files(out, product)
        key = _key(out, product.path)
        before = dict(trie.items(prefix=key)) if trie.has_node(key) else {}
        same = {name: value[1] for name, value in before.items()} == {name: value[1] for name, value in items.items()}
        if same:
            change.unchanged.append(str(product.path))
        elif product.changed():
            change.unstable.append(str(product.path))
        elif before and not replace:
            change.conflicting.append(str(product.path))
        else:
            size = None if before or size is None else size + sum(file[0] for file in product.files.values())
            for name in before:
                del trie[name]
            trie.update(items)
            change.added.append(str(product.path))
    _set_tree(out, trie, size)
    return change


def prune(out: "Output", needed: set[str]) -> int:
    """Drops the files from the tree that belong to none of the `needed` paths below it; returns their number.

    Remotes keep the files, and older versions of dvc.lock still list them.
    """
    trie = contents(out)
    dropped = [key for key in trie if not any("/".join(key[:length]) in needed for length in range(1, len(key) + 1))]
    for key in dropped:
        del trie[key]
    if dropped:
        _set_tree(out, trie, None)
    return len(dropped)


def _key(out: "Output", path: Path) -> tuple[str, ...]:
    return path.resolve().relative_to(Path(out.fs_path).resolve()).parts


def _store_files(out: "Output", product: Product) -> dict[tuple[str, ...], tuple[Any, Any]]:
    """Adds the product's files to DVC's cache, as hard links if it is configured so; returns their trie items."""
    from dvc_data.hashfile.build import build
    from dvc_data.hashfile.transfer import transfer

    hardlink = "hardlink" in out.cache.cache_types  # DVC tries a reflink before, and a copy after
    items = {}
    for path in product.files:
        staging, meta, content = build(out.cache, str(path.resolve()), out.fs, out.hash_name)
        if transfer(staging, out.cache, {content.hash_info}, hardlink=hardlink, shallow=False).failed:
            raise SharingError(f"{path} can't be added to DVC's cache: check the free space and its permissions")
        items[_key(out, path)] = (meta, content.hash_info)
    return items


def _set_tree(out: "Output", trie: Any, size: int | None) -> None:
    from dvc_data.hashfile.db import add_update_tree
    from dvc_data.hashfile.meta import Meta
    from dvc_data.hashfile.tree import Tree

    tree = Tree.from_trie(trie)
    tree.digest()
    add_update_tree(out.cache, tree)
    out.obj, out.hash_info, out.files = tree, tree.hash_info, None
    out.meta = Meta(isdir=True, nfiles=len(tree), size=size)


def write_stage(out: "Output", *, complete: bool) -> None:
    """Writes the stage to dvc.lock.

    Its dependency, the configuration, is recorded only if the tree is complete. Otherwise `dvc repro` would consider
    the stage up to date.
    """
    from dvc_data.hashfile.hash_info import HashInfo
    from dvc_data.hashfile.meta import Meta

    for dependency in out.stage.deps:
        if complete:
            dependency.save()
        else:
            dependency.hash_info, dependency.meta = HashInfo(), Meta()
    out.stage.dump(update_pipeline=False)


def join(out: "Output", stage: Stage, theirs: dict[str, Any]) -> Change:
    """Adds the files that another parsed dvc.lock has in a stage's tree. If a file's contents differ, ours is kept."""
    from dvc_data.hashfile.hash_info import HashInfo

    change = Change()
    entry: dict[str, Any] = next(iter(theirs.get("stages", {}).get(stage, {}).get("outs", [])), {})
    trie, recorded = contents(out), out.hash_info
    if not entry.get("md5") or (recorded and entry["md5"] == recorded.value):
        return change
    out.hash_info, out.obj = HashInfo("md5", entry["md5"]), None
    for key, value in contents(out).items():
        ours = trie.get(key)
        if ours is None:
            trie[key] = value
            change.added.append("/".join(key))
        elif ours[1] != value[1]:
            change.conflicting.append("/".join(key))
    _set_tree(out, trie, None)
    return change


def parse_lock(text: str, what: str) -> dict[str, Any]:
    """The content of a dvc.lock, which messages call `what`. Raises SharingError if it isn't valid."""
    try:
        lock = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise SharingError(
            f"{what} is not valid YAML ({' '.join(str(error).split())}): name a commit whose dvc.lock is valid"
        ) from None
    if not isinstance(lock, dict):
        raise SharingError(f"{what} doesn't have the structure of a dvc.lock: name a commit whose dvc.lock is valid")
    return lock


def push(repo: "Repo", stages: list[Stage]) -> int:
    """Sends the files that the remotes don't have; returns their number.

    Raises:
        SharingError: a remote inside the repository would exceed `REPOSITORY_LIMIT`, or a remote can't be written to.
    """
    for stage in stages:
        _check_size(repo, output_of(repo, stage))
    try:
        return int(repo.push(targets=list(stages)))
    except Exception as error:  # every kind of remote has its own errors
        text = " ".join(str(error).split())
        raise SharingError(
            f"not all files were sent ({text}), but dvc.lock is written: run the same command again to send the rest"
        ) from error


def _check_size(repo: "Repo", out: "Output") -> None:
    odb = repo.cloud.get_remote_odb(out.remote)
    folder = Path(odb.path)
    if odb.fs.protocol != "local" or Path(repo.root_dir) not in folder.parents:
        return
    present = {path.parent.name + path.name: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    missing = {value[1].value for value in contents(out).values()} - present.keys()
    cached = (Path(out.cache.oid_to_path(oid)) for oid in missing)
    total = sum(present.values()) + sum(path.stat().st_size for path in cached if path.is_file())
    if total > REPOSITORY_LIMIT:
        raise SharingError(
            f"{out} would enlarge the remote inside the repository ({folder}) to {total / 1e6:.1f} MB, but at most "
            f"{REPOSITORY_LIMIT / 1e6:.0f} MB are allowed: give its output in dvc.yaml another `remote:`"
        )
