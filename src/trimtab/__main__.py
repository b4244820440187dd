"""``python -m trimtab`` is the command ``trimtab``."""

from trimtab.cli import main

main()
