"""The one error of all contract suites."""

from trimtab.core import TrimtabError


class CheckFailed(TrimtabError, AssertionError):
    """An object breaks a rule of its contract.

    Attributes:
        rule: which rule, in a few words; tests look at this.
        expected, seen: what the rule asks for and what was found.

    Example:
        >>> print(CheckFailed("pads are not supervised", "label -100 on <pad>", "label 10 in row 3"))
        pads are not supervised: expected label -100 on <pad>, saw label 10 in row 3
    """

    def __init__(self, rule: str, expected: object, seen: object):
        super().__init__(rule, expected, seen)
        self.rule, self.expected, self.seen = rule, expected, seen

    def __str__(self) -> str:
        return f"{self.rule}: expected {self.expected}, saw {self.seen}"
