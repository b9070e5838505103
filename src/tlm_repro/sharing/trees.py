"""The trees of products that DVC versions: adding to them, joining two records of them, pushing them.

`dvc commit` records a folder as it lies there: half-done products would come in, and products that weren't pulled would
drop out. Here only the products given are added, and all that was in the tree stays. DVC hashes, stores and transfers.
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
REPOSITORY_LIMIT = 5_000_000  # bytes of a remote that lies in the repository: git keeps each version for ever


@dataclass
class Change:
    """What adding did to a tree: paths of products, or of files where two records were joined."""

    added: list[str] = field(default_factory=list)
    there: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)  # in the tree with other contents, and left so
    changed: list[str] = field(default_factory=list)  # changed while they were read, and left out


@contextlib.contextmanager
def opened(root: Path) -> Iterator["Repo"]:
    """DVC's view of a repository, locked against other DVC commands there.

    Raises:
        SharingError: it isn't a DVC repository, another DVC command holds it, or DVC fails otherwise.
    """
    from dvc.exceptions import DvcException
    from dvc.repo import Repo, lock_repo

    logging.getLogger("dvc").setLevel(logging.WARNING)
    try:
        with Repo(str(root)) as repo, lock_repo(repo):
            yield repo
    except DvcException as error:
        text = " ".join(str(error).split())
        raise SharingError(f"DVC: {text}. What is done stays done: run the same command again") from error


def tree_of(repo: "Repo", name: str) -> "Output":
    """A stage's only output."""
    stage = repo.stage.load_one(str(Path(repo.root_dir) / "dvc.yaml"), name)
    if len(stage.outs) != 1:
        raise SharingError(f"stage '{name}' of dvc.yaml must have one output: restore it with `git checkout dvc.yaml`")
    return stage.outs[0]


def contents(out: "Output") -> Any:
    """The tree that dvc.lock records, as a trie of path parts → (meta, hash); it is fetched if it isn't here."""
    from dvc_data.hashfile.tree import Tree

    if not out.hash_info:
        return Tree().as_trie()
    tree = out.get_dir_cache()
    if tree is None:
        raise SharingError(
            f"the list of what {out} holds ({out.hash_info.value}) is neither in DVC's cache nor in its remote: "
            f"`dvc fetch {out.stage.addressing}` says why"
        )
    return tree.as_trie()


def names(out: "Output") -> set[str]:
    """Paths, below the tree's folder, of all files in the tree."""
    return {"/".join(key) for key in contents(out)}


def add(out: "Output", products: Iterable[Product], *, replace: bool = False) -> Change:
    """Puts products into DVC's cache and into the tree; `dump` then writes it to dvc.lock.

    A product whose path is in the tree with other contents is left as it was published, unless `replace`.
    """
    change = Change()
    trie, size = contents(out), out.meta.size if out.hash_info else 0
    for product in products:
        items = _stored(out, product)
        key = _key(out, product.path)
        before = dict(trie.items(prefix=key)) if trie.has_node(key) else {}
        same = {name: value[1] for name, value in before.items()} == {name: value[1] for name, value in items.items()}
        if same:
            change.there.append(str(product.path))
        elif product.changed():
            change.changed.append(str(product.path))
        elif before and not replace:
            change.kept.append(str(product.path))
        else:
            size = None if before or size is None else size + sum(seen[0] for seen in product.files.values())
            for name in before:
                del trie[name]
            trie.update(items)
            change.added.append(str(product.path))
    _record(out, trie, size)
    return change


def prune(out: "Output", asked: set[str]) -> int:
    """Drops from the tree what belongs to none of the products `asked`, paths below the tree; returns how many files.

    Remotes keep it, and an older dvc.lock still names it.
    """
    trie = contents(out)
    dropped = [key for key in trie if not any("/".join(key[:length]) in asked for length in range(1, len(key) + 1))]
    for key in dropped:
        del trie[key]
    if dropped:
        _record(out, trie, None)
    return len(dropped)


def _key(out: "Output", path: Path) -> tuple[str, ...]:
    return path.resolve().relative_to(Path(out.fs_path).resolve()).parts


def _stored(out: "Output", product: Product) -> dict[tuple[str, ...], tuple[Any, Any]]:
    """Puts the product's files into the cache (as hard links, if that is how it is configured)."""
    from dvc_data.hashfile.build import build
    from dvc_data.hashfile.transfer import transfer

    hardlink = "hardlink" in out.cache.cache_types  # a reflink comes before it, a copy after it
    items = {}
    for path in product.files:
        staging, meta, content = build(out.cache, str(path.resolve()), out.fs, out.hash_name)
        if transfer(staging, out.cache, {content.hash_info}, hardlink=hardlink, shallow=False).failed:
            raise SharingError(f"{path} can't be put into DVC's cache: check the free space and its permissions")
        items[_key(out, path)] = (meta, content.hash_info)
    return items


def _record(out: "Output", trie: Any, size: int | None) -> None:
    from dvc_data.hashfile.db import add_update_tree
    from dvc_data.hashfile.meta import Meta
    from dvc_data.hashfile.tree import Tree

    tree = Tree.from_trie(trie)
    tree.digest()
    add_update_tree(out.cache, tree)
    out.obj, out.hash_info, out.files = tree, tree.hash_info, None
    out.meta = Meta(isdir=True, nfiles=len(tree), size=size)


def dump(out: "Output", *, complete: bool) -> None:
    """Writes the stage into dvc.lock.

    Its dependency, the configuration, is only recorded where all it asks for is there: otherwise `dvc repro` would take
    the stage for done.
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
    """Adds to a stage's tree what another dvc.lock (parsed) has in it. The same path with other contents stays ours."""
    from dvc_data.hashfile.hash_info import HashInfo

    change = Change()
    entry: dict[str, Any] = next(iter(theirs.get("stages", {}).get(stage, {}).get("outs", [])), {})
    trie, recorded = contents(out), out.hash_info
    if not entry.get("md5") or (recorded and entry["md5"] == recorded.value):
        return change
    out.hash_info, out.obj = HashInfo("md5", entry["md5"]), None
    for key, value in contents(out).items():
        mine = trie.get(key)
        if mine is None:
            trie[key] = value
            change.added.append("/".join(key))
        elif mine[1] != value[1]:
            change.kept.append("/".join(key))
    _record(out, trie, None)
    return change


def parse_lock(text: str, what: str) -> dict[str, Any]:
    try:
        found = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise SharingError(f"{what} is not valid YAML ({' '.join(str(error).split())}): take another") from None
    if not isinstance(found, dict):
        raise SharingError(f"{what} is no dvc.lock: take another")
    return found


def push(repo: "Repo", stages: list[Stage]) -> int:
    """Sends what the remotes don't have yet; returns the number of files.

    Raises:
        SharingError: a remote inside the repository would become larger than `REPOSITORY_LIMIT`, or one can't be
            written to.
    """
    for stage in stages:
        _check_size(repo, tree_of(repo, stage))
    try:
        return int(repo.push(targets=list(stages)))
    except Exception as error:  # each kind of remote has errors of its own
        text = " ".join(str(error).split())
        raise SharingError(
            f"the remote didn't take everything ({text}); dvc.lock is written, what has arrived isn't sent again: run "
            "the same command again"
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
            f"{out} would make the remote in the repository ({folder}) {total / 1e6:.1f} MB large, at most "
            f"{REPOSITORY_LIMIT / 1e6:.0f} MB are wise: give its output in dvc.yaml another `remote:`"
        )
