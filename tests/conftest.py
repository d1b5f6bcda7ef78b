"""What all tests share: the Hypothesis profiles."""

import os

from hypothesis import settings

# A first example may compile kernels, so no deadline; in CI the drawn examples are the same every time.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, database=None, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")
