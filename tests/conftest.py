"""No test reaches a network: the hub's libraries read this when they are imported."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
