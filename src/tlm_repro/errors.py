"""The errors that a user can meet: each message says what was seen, what was expected and what to do.

The command line prints the message in one line and returns `exit_code`.
"""


class TLMError(Exception):
    """Base of every expected failure; `exit_code` is what the command line returns for it."""

    exit_code = 1


class ConfigError(TLMError):
    """The configuration or a spec made from it can't be used."""

    exit_code = 2


class DataError(TLMError):
    """A corpus, a tokenizer or a token shard is missing, unreachable or malformed."""


class ArtifactError(TLMError):
    """A stage product on disk doesn't match its manifest, or isn't what the reader needs."""


class SharingError(TLMError):
    """Products can't be published, or two records of them can't be joined."""


class CheckpointError(TLMError):
    """No usable checkpoint could be read or written."""


class DivergenceError(TLMError):
    """The training loss stopped being finite."""


class EvaluationError(TLMError):
    """A benchmark can't be run as asked."""


class InterruptedRun(TLMError):
    """Training was told to stop by a signal; its state is saved and the next attempt resumes."""

    exit_code = 75  # EX_TEMPFAIL: try again
