"""A note beside the checkpoints of a run that diverged, so that a scheduler's retries end at once."""

from pathlib import Path

from tlm_repro.artifacts.files import read_json, write_json
from tlm_repro.errors import ArtifactError, DivergenceError

RECORD = "diverged.json"


def raise_if_diverged(checkpoints: Path) -> None:
    """Raises DivergenceError, with the earlier message, if an earlier attempt left a note."""
    path = checkpoints / RECORD
    if not path.exists():
        return
    note = read_json(path)
    if not (isinstance(note, dict) and isinstance(note.get("message"), str)):
        raise ArtifactError(f"{path} should say how the run diverged, but has no message: delete it to go on training")
    raise DivergenceError(
        f"an earlier attempt diverged and the next one would too: {note['message']}; or delete {path} to try again "
        "from the last checkpoint"
    )


def record(checkpoints: Path, step: int, error: DivergenceError) -> None:
    """Leaves the note. `step` is the last step before it diverged."""
    write_json(checkpoints / RECORD, {"step": step, "message": str(error)})
