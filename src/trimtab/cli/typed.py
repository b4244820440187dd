"""Commands from typed functions: the signature gives arguments and options, the docstring their help, so that both are written once.

Positional parameters become arguments and keyword-only ones options: ``bool`` a flag, ``tuple[str, ...]`` an option that may be repeated, ``Literal`` a choice,
``Annotated[T, "N|A-B"]`` names the value in the help. What the function returns is the exit code.
"""

import inspect
import re
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import click


def _sections(docstring: str) -> tuple[str, dict[str, str], str]:
    """The text, the help of each parameter (section Args) and the lines of section Example."""
    text, _, rest = inspect.cleandoc(docstring).partition("\nArgs:\n")
    arguments, _, example = rest.partition("\nExample:\n")
    found = re.findall(r"^    (\w+): (.+(?:\n {5,}.+)*)", arguments, re.M)
    return text.strip(), {name: re.sub(r"\s+", " ", line) for name, line in found}, inspect.cleandoc(example)


def _parameter(parameter: inspect.Parameter, hint: Any, line: str | None) -> click.Parameter:
    metavar, multiple = None, False
    if get_origin(hint) is Annotated:
        hint, metavar = get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        hint = next(option for option in get_args(hint) if option is not type(None))
    if get_origin(hint) is tuple:
        hint, multiple = get_args(hint)[0], True
    if get_origin(hint) is Literal:
        kind: Any = click.Choice(get_args(hint))
    else:
        kind = click.Path(path_type=Path) if hint is Path else hint
    name = parameter.name.rstrip("_")  # json_ and the like, where the plain name is taken in Python
    needed = parameter.default is parameter.empty
    settings: dict[str, Any] = {"required": True} if needed else {"default": parameter.default}
    if parameter.kind is not parameter.KEYWORD_ONLY:
        shown = metavar or name.upper()
        return click.Argument([parameter.name], type=kind, metavar=shown if needed else f"[{shown}]", **settings)
    settings |= {"is_flag": True} if hint is bool else {"type": kind, "multiple": multiple, "metavar": metavar}
    settings["show_default"] = hint is not bool and settings.get("default") not in (None, ())
    return click.Option(["--" + name.replace("_", "-"), parameter.name], help=line, **settings)


def command(function: Callable[..., int | None]) -> click.Command:
    """A click command that calls a typed function.

    Args:
        function: what to call; its docstring has one line, maybe more text, then maybe sections Args and Example.

    Example:
        >>> def greet(name: str, *, times: int = 1, loud: bool = False):
        ...     '''Say hello.
        ...
        ...     Args:
        ...         name: to whom.
        ...         times: how often.
        ...     '''
        ...     print(times * f"Hello {name}{'!' if loud else '.'}")
        >>> command(greet).main(["Ann", "--loud"], standalone_mode=False)
        Hello Ann!
    """
    text, lines, example = _sections(function.__doc__ or "")
    hints = get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters.values()
    made = [_parameter(p, hints[p.name], lines.get(p.name)) for p in parameters]
    blocks = [text, *(f"{p.metavar}: {lines[p.name]}" for p in made if isinstance(p, click.Argument) and p.name in lines)]
    if example:
        blocks.append("\b\nExample:\n" + "\n".join(f"  {line}" for line in example.splitlines()))
    return click.Command(
        function.__name__,
        callback=function,
        params=made,
        help="\n\n".join(blocks),
        context_settings={"help_option_names": ["-h", "--help"]},
    )


class Commands(click.Group):
    """Commands that are imported when they are called.

    Args:
        name: of the whole program.
        table: command -> (module that holds a function of that name, one line for the overview).
    """

    def __init__(self, name: str, table: dict[str, tuple[str, str]], **settings: Any):
        super().__init__(name, context_settings={"help_option_names": ["-h", "--help"]}, **settings)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.table]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        return command(getattr(import_module(self.table[cmd_name][0]), cmd_name))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.table and not args[0].startswith("-"):
            near = get_close_matches(args[0], self.table, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}? " if near else ""
            ctx.fail(f"unknown command {args[0]!r}; {hint}allowed: {', '.join(self.table)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self.table.items()])
