"""Claims made from the toy's file."""

from pathlib import Path

from trimtab.claims import Claim, load_file

SOURCE = Path(__file__).with_name("toy_claim.py").read_text(encoding="utf-8")


def altered_toy(folder: Path, *replacements: tuple[str, str]) -> Claim:
    """Load the toy from a copy in a folder, with some of its text replaced."""
    text = SOURCE
    for old, new in replacements:
        assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
        text = text.replace(old, new)
    path = folder / f"toy_{len(list(folder.glob('toy_*.py')))}.py"
    path.write_text(text, encoding="utf-8")
    return load_file(path)
