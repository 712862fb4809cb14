import math

import pytest

from parlmesh.config import load_source
from parlmesh.errors import ConfigError


def test_the_attribute_of_the_module_is_found():
    assert load_source("root", "math:sqrt") is math.sqrt


@pytest.mark.parametrize("source", ["", ":", "math", "math:", ":sqrt"])
def test_a_source_of_another_form_is_refused(source):
    with pytest.raises(ConfigError, match=f"^root must be module:attribute, got '{source}'$"):
        load_source("root", source)


@pytest.mark.parametrize("source", ["nowhere:sqrt", "math:nothing"])
def test_a_source_that_is_not_there_is_refused(source):
    with pytest.raises(ConfigError, match=f"^root = '{source}' cannot be imported: "):
        load_source("root", source)
