"""The fleet's services as child processes: started, kept alive, and ended with their parent."""

from .service_command import merged, service_command, write_settings
from .supervisor import Child, ChildSpec, ChildState, Supervisor

__all__ = ["Child", "ChildSpec", "ChildState", "Supervisor", "merged", "service_command", "write_settings"]
