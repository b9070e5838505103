"""No test reaches a network, nor the user's cache; each uses one thread. Set before the libraries that read it load."""

import os
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
CACHE = tempfile.TemporaryDirectory(prefix="tlm-repro-")
os.environ["TLM_CACHE"] = CACHE.name
# As many processes as cores run tests. A second thread in each, or one that spins while it waits, slows them all.
os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}

from hypothesis import settings  # noqa: E402
from tiers import (  # noqa: E402, F401
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_ignore_collect,
    pytest_make_collect_report,
    pytest_runtest_protocol,
)

# Two processes share the cores: how long an example takes says nothing.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")
