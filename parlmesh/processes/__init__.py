"""The fleet's services as child processes of this one: started, kept alive, ended with their parent."""

from .service_command import merged, service_command, write_settings
from .supervisor import Child, ChildSpec, ChildState, Supervisor

__all__ = ["Child", "ChildSpec", "ChildState", "Supervisor", "merged", "service_command", "write_settings"]
