"""Contract suites: each raises CheckFailed unless an object keeps the contract of its room. Run them on your own objects too."""

from trimtab.testing.claims import check_claim
from trimtab.testing.errors import CheckFailed
from trimtab.testing.modules import check_module
from trimtab.testing.tasks import check_task
from trimtab.testing.training import check_objective, check_resume

__all__ = [
    "CheckFailed",
    "check_claim",
    "check_module",
    "check_objective",
    "check_resume",
    "check_task",
]
