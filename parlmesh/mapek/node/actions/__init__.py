"""Actions that a loop can take on a node. An action names its target, acts on it, and may be able to undo that."""

from .action import Action, Done, Prepared
from .dry_run import DryRun
from .folder import ClearFolder
from .process import RestartProcess
from .route import Route
from .unit import RestartUnit

ACTIONS: dict[str, Action] = {
    action.kind: action for action in (DryRun(), ClearFolder(), RestartProcess(), RestartUnit(), Route())
}

__all__ = ["ACTIONS", "Action", "Done", "Prepared"]
