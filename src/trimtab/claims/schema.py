"""What a record must look like. Checked before one is written and whenever one is read, for a record may come from anywhere."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trimtab.claims.statements import claim_verdict, judge
from trimtab.core.intervals import LARGEST

Check = Callable[[Any], bool]
Fields = Mapping[str, tuple[Check, str]]

_EXACT = 2**53  # beyond it a whole number is not the same in every JSON reader


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _like(pattern: str) -> Check:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _maybe(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _list(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _dict(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def _shape(**checks: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(name in value and check(value[name]) for name, check in checks.items())


def _interval(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_number, value)) and value[0] <= value[1]


def _curve(value: Any) -> bool:
    return _list(lambda point: _list(_number)(point) and len(point) == 2)(value)


def _different(check: Check) -> Check:
    return lambda value: _list(check)(value) and 0 < len(value) == len(set(value))


_verdict = _maybe(_like("reproduced|partly|contradicted|undecided|invalid"))
_arm_seed_metric = _dict(_dict(_dict(_number)))

STATEMENT: Fields = {
    "name": (_text, "a text"),
    "primary": (_flag, "true or false"),
    "kind": (_like("superior|not_worse|equal|trend"), "superior, not_worse, equal or trend"),
    "metric": (_text, "a text"),
    "contrast": (
        _shape(arm=_text, against=_maybe(_text), best_of=_maybe(_shape(arms=_list(_text), by=_text, means=_dict(_number)))),
        "an arm, what it is compared with, and how it was chosen",
    ),
    "lower_is_better": (_flag, "true or false"),
    "margin": (lambda value: _number(value) and value > 0, "a number above 0"),
    "why": (_text, "a text"),
    "verdict": (lambda value: _verdict(value) and value != "partly", "reproduced, contradicted, undecided, invalid or null"),
    "note": (_maybe(_text), "a text or null"),
    "estimate": (_maybe(_number), "a number or null"),
    "interval": (_maybe(_interval), "two ascending numbers or null"),
    "level": (lambda value: _number(value) and 0 < value < 1, "a number between 0 and 1"),
    "holds_at_adjusted_level": (_flag, "true or false"),
    "paper": (_maybe(lambda value: _number(value) or _text(value)), "a number, a text or null"),
    "per_seed": (_dict(_number), "a number for each seed"),
}

RECORD: Fields = {
    "slug": (_like(r"[a-z0-9]+(-[a-z0-9]+)*"), "lower-case words joined by '-'"),
    "title": (_text, "a text"),
    "about": (_text, "a text"),
    "size": (_like(r"[A-Za-z0-9][A-Za-z0-9._-]*"), "letters, digits, '.', '_', '-'"),
    "verdict": (_verdict, "reproduced, partly, contradicted, undecided, invalid or null"),
    "note": (_maybe(_text), "a text or null"),
    "statements": (_list(lambda value: isinstance(value, dict)), "a list of statements"),
    "mastery": (
        _maybe(_shape(metric=_text, threshold=_number, lower_is_better=_flag, passed=_dict(_flag))),
        "a metric, its threshold and which arms passed, or null",
    ),
    "arms": (_different(_text), "one or more different names"),
    "baseline": (_text, "a text"),
    "seeds": (_different(_whole), "one or more different whole numbers"),
    "measured": (_arm_seed_metric, "arm -> seed -> metric -> number"),
    "paper": (_dict(_dict(_number)), "arm -> metric -> number"),
    "settings": (lambda value: isinstance(value, dict), "an object"),
    "claim_hash": (_like("[0-9a-f]{64}"), "64 hexadecimal digits"),
    "fingerprint": (_dict(lambda value: _number(value) or _text(value)), "name -> number or text"),
    "argv": (_list(_text), "a list of texts"),
    "version": (_text, "a text"),
    "commit": (_maybe(_like("[0-9a-f]{40,64}")), "a commit's hash or null"),
    "dirty": (_maybe(_flag), "true, false or null"),
    "libraries": (_dict(_text), "name -> version"),
    "device": (_text, "a text"),
    "threads": (_whole, "a whole number"),
    "machine": (_dict(_text), "name -> text"),
    "mixed": (_list(_text), "a list of field names"),
    "time": (_like(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"), "a UTC time such as 2026-01-31T12:00:00Z"),
    "wall_time": (_number, "a number of seconds"),
    "core_minutes": (_number, "a number"),
    "seconds": (_dict(_dict(_number)), "arm -> seed -> number"),
}

# records and pairs from before there were curves stay valid
_CURVES: Fields = {"curves": (_dict(_dict(_curve)), "arm -> seed -> [step, loss] pairs")}
_CURVE: Fields = {"curve": (_curve, "[step, loss] pairs")}
_ORIGIN = ("version", "commit", "dirty", "libraries", "device", "threads", "machine")
PAIR: Fields = {
    **{name: RECORD[name] for name in ("slug", "size", "claim_hash", "settings", "wall_time", "core_minutes")},
    "arm": (_text, "a text"),
    "seed": (_whole, "a whole number"),
    "metrics": (_dict(lambda value: _number(value) and abs(value) <= LARGEST), f"metric -> number of at most {LARGEST:g} in size"),
    "origin": (_shape(**{name: RECORD[name][0] for name in _ORIGIN}), f"an object with {', '.join(_ORIGIN)}"),
}
_SUPERSEDED: Fields = {"superseded": (lambda value: value is True, "true"), "superseded_reason": (_text, "a text")}


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _wrong(value: Mapping[str, Any], fields: Fields, where: str = "") -> Iterator[str]:
    for name, (check, what) in fields.items():
        if name not in value:
            yield f"{where}{name} is missing"
        elif not check(value[name]):
            yield f"{where}{name} should be {what}, is {_show(value[name])}"
    if extra := value.keys() - fields.keys():
        yield f"{where or 'it '}has fields that no record has: {', '.join(sorted(extra))}"


def _unsafe(value: Any, where: str = "") -> Iterator[str]:
    """Numbers that are no numbers elsewhere: 1e999 reads as infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        yield f"{where} is not a finite number"
    elif isinstance(value, int) and abs(value) > _EXACT:
        yield f"{where} is a whole number beyond 2**53"
    elif isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _unsafe(item, f"{where}.{key}" if where else str(key))


def pair_problems(pair: Any) -> list[str]:
    """What is wrong with the file of a finished pair, in words.

    Example:
        >>> pair_problems([])
        ['a finished run should be an object, is []']
    """
    if not isinstance(pair, dict):
        return [f"a finished run should be an object, is {_show(pair)}"]
    return [*_wrong(pair, {**PAIR, **(_CURVE if "curve" in pair else {})}), *_unsafe(pair)]


def problems(record: Any) -> list[str]:
    """What is wrong with a record, in words; nothing for a good one.

    Example:
        >>> problems([])
        ['a record should be an object, is []']
        >>> problems({"slug": "../etc"})[0]
        "slug should be lower-case words joined by '-', is '../etc'"
    """
    if not isinstance(record, dict):
        return [f"a record should be an object, is {_show(record)}"]
    fields = {**RECORD, **(_CURVES if "curves" in record else {}), **(_SUPERSEDED if "superseded" in record else {})}
    found = [*_wrong(record, fields), *_unsafe(record)]
    statements: Any = record.get("statements")
    if isinstance(statements, list):
        found += [text for k, entry in enumerate(statements) if isinstance(entry, dict) for text in _wrong(entry, STATEMENT, f"statements[{k}].")]
    if found:
        return found
    seeds = {str(seed) for seed in record["seeds"]}
    if record["measured"].keys() != set(record["arms"]) or any(rows.keys() != seeds for rows in record["measured"].values()):
        found.append("measured should have every arm with every seed and no other")
    for k, entry in enumerate(statements):
        interval, estimate = entry["interval"], entry["estimate"]
        if interval and not (estimate is not None and interval[0] <= estimate <= interval[1]):
            found.append(f"statements[{k}].estimate should lie in its interval {interval}, is {estimate}")
        if strange := entry["per_seed"].keys() - seeds:
            found.append(f"statements[{k}].per_seed should be of the record's seeds, has {_show(min(strange))}")
        follows = judge(entry["kind"], interval, entry["margin"]) if interval else None
        if entry["verdict"] in ("reproduced", "contradicted") and entry["verdict"] != follows:
            found.append(f"statements[{k}].verdict should be {follows!r} by its interval and margin, is {entry['verdict']!r}")
    due = claim_verdict([entry for entry in statements if entry["primary"]]) if record["size"] != "smoke" and len(seeds) > 1 else None
    if record["verdict"] != due:
        found.append(f"verdict should be {due!r} by its statements, size and seeds, is {record['verdict']!r}")
    return found
