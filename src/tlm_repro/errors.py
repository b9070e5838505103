"""The errors that a user can see. Each message says what was seen, what is allowed and what to do.

The command line prints the message as one line and returns `exit_code`.
"""


class TLMError(Exception):
    """Base of all expected failures. `exit_code` is what the command line returns."""

    exit_code = 1


class ConfigError(TLMError):
    """The configuration, or a spec made from it, is invalid."""

    exit_code = 2


class DataError(TLMError):
    """A corpus, a tokenizer or a token shard is missing, unreachable or malformed."""


class ArtifactError(TLMError):
    """A stage product on disk doesn't match its manifest or isn't what the reader needs."""


class SharingError(TLMError):
    """Products can't be published, or two records of them can't be merged."""


class CheckpointError(TLMError):
    """No usable checkpoint could be read or written."""


class DivergenceError(TLMError):
    """The training loss stopped being finite."""


class EvaluationError(TLMError):
    """A model can't be evaluated as requested."""


class InterruptedRun(TLMError):
    """A signal stopped training. The state is saved, and the next attempt resumes from it."""

    exit_code = 75  # EX_TEMPFAIL: try again
