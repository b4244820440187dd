from functools import partial

import pytest

from tests.claims.toys import altered_toy


@pytest.fixture
def altered(tmp_path):
    """Load the toy from a copy with some of its text replaced."""
    return partial(altered_toy, tmp_path)


@pytest.fixture
def toy(altered):
    return altered()
