from pathlib import Path
from typing import Any

import yaml
from hypothesis import given
from hypothesis import strategies as st

from parlmesh.processes import merged, service_command, write_settings


def test_a_service_is_started_with_its_file_and_overrides() -> None:
    command = service_command("actor", Path("runs/one/actor-0.yaml"), "incarnation=2")
    assert command[1] == "-m"
    assert command[2].removeprefix("parlmesh.") == "actor"
    assert command[3:] == ["--config", "runs/one/actor-0.yaml", "--set", "incarnation=2"]


def test_settings_are_written_whole(tmp_path: Path) -> None:
    write_settings(tmp_path / "deep" / "a.yaml", {"b": {"c": 1}})
    assert yaml.safe_load((tmp_path / "deep" / "a.yaml").read_text()) == {"b": {"c": 1}}
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["a.yaml"]


documents = st.recursive(
    st.integers() | st.text(max_size=3),
    lambda inner: st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)
mappings = st.dictionaries(st.text(max_size=2), documents, max_size=3)


@given(mappings, mappings)
def test_merging_keeps_every_leaf_of_what_is_above(below: dict[str, Any], above: dict[str, Any]) -> None:
    def kept(result: Any, wanted: Any) -> bool:
        if isinstance(wanted, dict) and isinstance(result, dict):
            return all(key in result and kept(result[key], value) for key, value in wanted.items())
        return bool(result == wanted)

    result = merged(below, above)
    assert kept(result, above)
    assert set(result) == set(below) | set(above)
    assert merged(result, above) == result
