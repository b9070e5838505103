"""No test reaches a network, nor the user's cache: this stands before the libraries that read it are imported."""

import os
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
CACHE = tempfile.TemporaryDirectory(prefix="tlm-repro-")
os.environ["TLM_CACHE"] = CACHE.name
