"""The objects of a fleet as a Helm chart: the same source, with Helm expressions in place of settings."""

import json
import re
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from .kubernetes import Object, Objects
from .settings import DeploySettings, camel
from .yaml_files import MADE, dump, dump_all

# Helm has built-in values for them.
_BUILT_IN = {"name": ".Release.Name", "namespace": ".Release.Namespace"}
# Not part of a chart: addresses of machines, and settings that change the structure of the objects.
_LEFT_OUT = {"scheduler_host", "learner_host", "relay_host", "learner_processes", "runbooks_url", "security"}
_SWITCHES = {"autoscaling": "autoscaler.yaml", "pod_monitor": "pod-monitor.yaml"}


def files(settings: DeploySettings) -> dict[str, str]:
    """All files of the chart; the settings are its default values."""
    objects = Objects(_expressions())
    found = {f"templates/{name}": _template(dump_all(each)) for name, each in objects.by_file().items()}
    optional: dict[str, Object] = {"autoscaling": objects.autoscaler(), "pod_monitor": objects.pod_monitor()}
    for switch, each in optional.items():
        body = _template(dump(each))
        found[f"templates/{_SWITCHES[switch]}"] = f"{{{{- if .Values.{camel(switch)} }}}}\n{body}{{{{- end }}}}\n"
    values = {camel(name): getattr(settings, name) for name in _values()}
    found["values.yaml"] = dump(values, header=MADE)
    found["values.schema.json"] = json.dumps(schema(), indent=2) + "\n"
    found["Chart.yaml"] = dump(
        {
            "apiVersion": "v2",
            "name": "parlmesh",
            "description": "A fleet of parlmesh: a scheduler, a learner, a relay and actors.",
            "type": "application",
            "version": _version(),
            "appVersion": _version(),
            "kubeVersion": ">=1.27.0-0",
        }
    )
    return found


def schema() -> dict[str, Any]:
    """The schema that Helm validates values against, with the settings' types and ranges."""
    whole = DeploySettings.model_json_schema()
    properties = {camel(name): whole["properties"][name] for name in _values()}
    for each in properties.values():
        each.pop("title", None)
    return {
        "$schema": "https://json-schema.org/draft-07/schema#",
        "title": "parlmesh",
        "type": "object",
        # Helm adds its own values.
        "properties": {**properties, "global": {"type": "object"}},
        "additionalProperties": False,
    }


def _values() -> list[str]:
    return [name for name in DeploySettings.model_fields if name not in _BUILT_IN and name not in _LEFT_OUT]


def _expressions() -> DeploySettings:
    """Settings whose values are Helm expressions; they are not validated, and nothing may compute with them."""
    found: dict[str, Any] = {name: f"{{{{ .Values.{camel(name)} }}}}" for name in _values()}
    found |= {name: f"{{{{ {word} }}}}" for name, word in _BUILT_IN.items()}
    # Helm reads a large number as a float and would write it with an exponent.
    found["step_budget"] = "{{ .Values.stepBudget | int64 }}"
    return DeploySettings.model_construct(**found)


def _template(text: str) -> str:
    """Unquotes numbers but not text: YAML parses Helm's output, and a text such as "1" must stay text."""
    numbers = "|".join(
        camel(name) for name in _values() if DeploySettings.model_fields[name].annotation in (int, float, bool)
    )
    text = re.sub(rf"'(\{{\{{ \.Values\.(?:{numbers})(?: \| int64)? \}}\}})'", r"\1", text)
    # An averageValue is a quantity, which is text.
    return text.replace("averageValue: {{ .Values.slots }}", "averageValue: '{{ .Values.slots }}'")


def _version() -> str:
    try:
        return version("parlmesh")
    except PackageNotFoundError:
        return "0.0.0"
