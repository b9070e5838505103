"""What is left of a run that diverged: a note beside its checkpoints, so that a scheduler's retries cost nothing."""

from pathlib import Path

from tlm_repro.artifacts.files import read_json, write_json
from tlm_repro.errors import ArtifactError, DivergenceError

RECORD = "diverged.json"


def refuse_again(checkpoints: Path) -> None:
    """Raises DivergenceError, with the message of then, if an earlier attempt has left its note."""
    path = checkpoints / RECORD
    if not path.exists():
        return
    found = read_json(path)
    if not (isinstance(found, dict) and isinstance(found.get("message"), str)):
        raise ArtifactError(f"{path} should say how the run diverged and doesn't: delete it to train on")
    raise DivergenceError(
        f"an earlier attempt diverged and the same would come again: {found['message']}; or delete {path} to try again "
        "from the last checkpoint"
    )


def record(checkpoints: Path, step: int, error: DivergenceError) -> None:
    """Leaves the note: `step` is the last one that was taken."""
    write_json(checkpoints / RECORD, {"step": step, "message": str(error)})
