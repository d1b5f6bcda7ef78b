"""What all tests share: the Hypothesis profiles, and the switch for the long run of the bits claim."""

import os

import pytest
from hypothesis import settings

# Kernels of the sources as they are: what `make kernels` has left in the tree is tested by name.
os.environ["TOPOS_SHIPPED"] = "off"

# A first example may compile kernels, so no deadline; in CI the drawn examples are the same every time.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, database=None, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--big``."""
    parser.addoption("--big", action="store_true", help="draw 100,000 graphs for the bits claim instead of 1,000")


@pytest.fixture(scope="session")
def graph_count(request: pytest.FixtureRequest) -> int:
    """Return how many graphs the bits claim is checked on."""
    return 100_000 if request.config.getoption("--big") else 1_000
