import errno
import json
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import AdamW

from tlm_repro.errors import CheckpointError
from tlm_repro.training import checkpoint
from tlm_repro.training.checkpoint import Checkpoints, Snapshot, random_state, set_random_state

State = tuple[nn.Module, AdamW]


class Net(nn.Module):
    """Two tied matrices, a vector and a buffer."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.inside = nn.Linear(width, width)
        self.outside = nn.Linear(width, width, bias=False)
        self.outside.weight = self.inside.weight
        self.register_buffer("count", torch.zeros(2))


def trained(seed: int, steps: int = 2, width: int = 8) -> State:
    torch.manual_seed(seed)
    model = Net(width)
    optimizer = AdamW(model.parameters(), lr=0.1, fused=True)
    for _ in range(steps):
        model.outside(model.inside(torch.randn(4, width))).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    model.count += seed
    return model, optimizer


def save(checkpoints: Checkpoints, step: int, state: State) -> Path:
    return checkpoints.write(Snapshot.of(step, *state, [random_state()], {"seconds": 1.5 * step}))


def tensors(state: State) -> list[torch.Tensor]:
    model, optimizer = state
    moments = [
        optimizer.state[parameter][key] for parameter in model.parameters() for key in ("step", "exp_avg", "exp_avg_sq")
    ]
    return [*model.state_dict().values(), *moments]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def small_files() -> Iterator[Callable[[int], None]]:
    """Lets this process write files of a limited size only: a full disk, as far as the writer can tell."""
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda limit: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, former[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, former)


def test_restores_every_bit(tmp_path: Path) -> None:
    checkpoints, state, other = Checkpoints(tmp_path, "run-a"), trained(1), trained(2, steps=1)
    save(checkpoints, 5, state)
    found = checkpoints.latest()
    assert found is not None
    assert (found.step, found.extra) == (5, {"seconds": 7.5})
    found.restore(*other)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(tensors(other), tensors(state), strict=True))
    assert other[0].outside.weight is other[0].inside.weight


def test_restores_an_optimizer_that_has_not_stepped(tmp_path: Path) -> None:
    checkpoints, fresh = Checkpoints(tmp_path, "run-a"), trained(2, steps=0)
    save(checkpoints, 0, trained(1, steps=0))
    found = checkpoints.latest()
    assert found is not None
    found.restore(*fresh)
    assert not fresh[1].state_dict()["state"]


def test_random_numbers_go_on_where_they_were() -> None:
    torch.manual_seed(7)
    torch.rand(3)
    states = json.loads(json.dumps(random_state()))
    wanted = torch.rand(5)
    torch.manual_seed(8)
    set_random_state(states)
    assert torch.equal(torch.rand(5), wanted)


def test_keeps_the_last_two_and_nothing_pickled(tmp_path: Path) -> None:
    checkpoints, state = Checkpoints(tmp_path, "run-a"), trained(1)
    for step in (3, 12, 100):
        save(checkpoints, step, state)
    assert names(tmp_path) == ["step-00000012", "step-00000100"]
    assert names(tmp_path / "step-00000100") == ["moments.safetensors", "state.json", "weights.safetensors"]
    checkpoints.clear()
    assert names(tmp_path) == []


def test_a_stray_temporary_is_ignored_and_removed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "run-a")
    shutil.copytree(save(checkpoints, 3, trained(1)), tmp_path / ".step-00000009.x1y2z3")
    found = checkpoints.latest()
    assert found is not None
    assert found.step == 3
    assert names(tmp_path) == ["step-00000003"]


@pytest.mark.parametrize("file", ["weights.safetensors", "moments.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["flipped", "cut", "missing"])
def test_a_damaged_one_is_skipped_for_the_one_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, damage: str
) -> None:
    checkpoints = Checkpoints(tmp_path, "run-a")
    save(checkpoints, 3, trained(1))
    victim = save(checkpoints, 4, trained(2)) / file
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "missing":
        victim.unlink()
    else:
        victim.write_bytes(content if damage == "flipped" else content[:-20])
    found = checkpoints.latest()
    assert found is not None
    assert found.step == 3
    assert f"skipping the damaged checkpoint {victim.parent}" in capsys.readouterr().err


def test_a_damaged_one_is_the_first_to_go(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "run-a")
    save(checkpoints, 3, trained(1))
    (save(checkpoints, 4, trained(2)) / "state.json").unlink()
    checkpoints.latest()
    save(checkpoints, 5, trained(3))
    assert names(tmp_path) == ["step-00000003", "step-00000005"]


def test_when_all_are_damaged_it_says_so(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "run-a")
    assert checkpoints.latest() is None
    for step in (3, 4):
        (save(checkpoints, step, trained(1)) / "state.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"none of the 2 checkpoints .* is usable: restore one, or delete"):
        checkpoints.latest()


def test_another_run_is_refused(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path, "run-a"), 3, trained(1))
    with pytest.raises(CheckpointError, match="belongs to the run run-a, this is run-b"):
        Checkpoints(tmp_path, "run-b").latest()


def test_another_shape_is_refused(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "run-a")
    save(checkpoints, 3, trained(1))
    found = checkpoints.latest()
    assert found is not None
    with pytest.raises(CheckpointError, match=r"inside.bias has shape \(8,\), the model's has \(4,\)"):
        found.restore(*trained(1, width=4))


def test_a_write_that_fails_half_way_leaves_the_one_before(tmp_path: Path, small_files: Callable[[int], None]) -> None:
    checkpoints, large = Checkpoints(tmp_path, "run-a"), trained(1, width=256)
    save(checkpoints, 3, large)
    small_files(100_000)  # the weights take 264 kB
    with pytest.raises(
        CheckpointError, match=r"step-00000004 could not be written .*File too large.*step-00000003 is intact"
    ):
        save(checkpoints, 4, large)
    assert names(tmp_path) == ["step-00000003"]
    found = checkpoints.latest()
    assert found is not None
    assert found.step == 3


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint.os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"No space left on device.*free some space .* no earlier one exists"):
        save(Checkpoints(tmp_path, "run-a"), 4, trained(1))
    assert names(tmp_path) == []
