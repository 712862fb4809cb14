from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from parlmesh.dashboard.config import DashboardConfig


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"host": "0.0.0.0"}, "host 0.0.0.0 is open to other machines: set tokens"),
        ({"host": "0.0.0.0", "tokens": Path("t")}, "set certificate and key, or behind_proxy"),
        ({"certificate": Path("c")}, "certificate is set without key"),
        ({"prefix": "fleet"}, "prefix"),
        ({"prefix": "/a b"}, "prefix"),
    ],
)
def test_settings_less_safe_than_they_look_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        DashboardConfig(**settings)


def test_other_machines_need_a_login_and_tls() -> None:
    tokens: dict[str, Any] = {"host": "0.0.0.0", "tokens": Path("t")}
    assert DashboardConfig(**tokens, certificate=Path("c"), key=Path("k")).host == "0.0.0.0"
    assert DashboardConfig(**tokens, behind_proxy=True).behind_proxy
