"""The help text of a field: the string below it, read from the source only when help is shown.

pydantic's `use_attribute_docstrings` reads every model's source on import, a fifth of a learner's start-up time.
"""

import ast
import functools
import inspect
import itertools
import textwrap
from collections.abc import Iterable

from pydantic import BaseModel


def help_of(model: type[BaseModel], name: str) -> str:
    """The string below the field, in one line; empty if there is none."""
    given = model.model_fields[name].description
    found = (_texts(owner).get(name) for owner in model.__mro__ if name in vars(owner).get("__annotations__", {}))
    return " ".join((given or next(found, None) or "").split())


@functools.cache
def _texts(model: type) -> dict[str, str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(model)))
    except (OSError, TypeError, SyntaxError):
        return {}  # typed at a prompt, or shipped without its source
    (definition,) = tree.body
    return dict(_under_fields(definition.body)) if isinstance(definition, ast.ClassDef) else {}


def _under_fields(body: list[ast.stmt]) -> Iterable[tuple[str, str]]:
    for field, below in itertools.pairwise(body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
            yield field.target.id, below.value.value
