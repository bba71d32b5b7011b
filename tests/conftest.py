"""What every test shares: one torch thread a process, and seeds that can be replayed."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anybody imports torch

import hypothesis

hypothesis.settings.register_profile("any machine", deadline=None, print_blob=True)
hypothesis.settings.load_profile("any machine")
