"""Contract suites: each raises CheckFailed unless an object keeps the contract of its room. Run them on your own objects too."""

from trimtab.testing.claims import check_claim
from trimtab.testing.errors import CheckFailed
from trimtab.testing.tasks import check_task

__all__ = [
    "CheckFailed",
    "check_claim",
    "check_task",
]
