"""trimtab: published results on efficient and dependable machine learning as components, jobs and claims.

Rooms (``trimtab.nn``, ``trimtab.tasks`` ...) load at first use; importing the package loads none of them.
"""

from importlib import import_module
from types import ModuleType

TYPE_CHECKING = False  # typing has it too, and would load twenty modules for it
if TYPE_CHECKING:  # for editors and type checkers, which do not see rooms that load at first use
    from trimtab import claims, cli, core, losses, metrics, nn, optim, tasks, testing, train

__version__ = "0.1.0"

__all__ = ["__version__", "claims", "cli", "core", "losses", "metrics", "nn", "optim", "tasks", "testing", "train"]
_ROOMS = __all__[1:]


def __getattr__(name: str) -> ModuleType:
    if name in _ROOMS:
        return import_module(f"trimtab.{name}")
    raise AttributeError(f"module 'trimtab' has no attribute {name!r}; rooms: {', '.join(_ROOMS)}")


def __dir__() -> list[str]:
    return __all__
