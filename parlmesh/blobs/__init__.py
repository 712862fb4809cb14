"""Large arrays beside tasks: named by their content, kept in files of shared memory, mapped and never copied."""

from .folder import BlobFolder
from .references import MARK, Reference, check_name, name_of
from .store import Blobs

__all__ = ["MARK", "BlobFolder", "Blobs", "Reference", "check_name", "name_of"]
