"""Shared by all tests: one thread for torch, so that runs are equal and neighbours are not slowed."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
