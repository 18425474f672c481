"""Options as a user meets them: flags with help, and layers of values that are checked alike.

The options themselves are declared elsewhere, as dataclass fields made by `appo.utils.options.option`; here they become
`--name=value`. Flags are flat (no prefix of their group), take hyphens or underscores, and may be typed without a value
when they are booleans. What is typed stays text until `check_layer`, so a wrong value is refused in the same words
whether it comes from the command line, from a file or from a program.
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
import traceback
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn

from appo.utils.options import ConfigError, OptionRule, check_value, limits, nearest_names, options_of, to_text

VERSION = "0.1.0"  # of the whole program
COMMAND_LINE = "command line"
_SHELLS = ("bash", "zsh", "fish")  # for which options can be completed
_MORE_HELP = """{description}
- --help=GROUP: one group alone, of
  {groups}
- --help --env=NAME: with the options of that environment, and what it starts from
- --version; --completion=SHELL: a script that completes options in {shells}"""
BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_METAVARS = {bool: "BOOL", int: "INT", float: "FLOAT", str: "TEXT"}
_MAX_INTEGER = 2**63 - 1  # counters are 64-bit
_NEGATIVE = re.compile(r"-\.?\d")  # how a number begins that could be taken for an option


class Declared(NamedTuple):
    """One option as its group declares it."""

    name: str
    group: str
    kind: Any  # bool, int, float, str, tuple[kind, ...], or one of these or None
    default: Any
    rule: OptionRule


class Parsed(NamedTuple):
    """What `parse` found."""

    values: dict[str, Any]  # of every option: typed, else of the lower layers, else the declared default
    typed: frozenset[str]  # the options that the user typed


class _Typed(NamedTuple):
    """The words typed after a flag, which tells them from a default."""

    words: tuple[str, ...]


def declared_options(groups: Mapping[str, type]) -> dict[str, Declared]:
    """Every option of several config dataclasses by name.

    Raises:
        ConfigError: two groups declare the same name or alias.
    """
    options: dict[str, Declared] = {}
    owners: dict[str, str] = {}
    for group, config_type in groups.items():
        kinds = typing.get_type_hints(config_type)
        for field, rule in options_of(config_type):
            for name in (field.name, *rule.aliases):
                if name in owners:
                    raise ConfigError(
                        f"option {name!r} is declared twice, in {owners[name]} and in {group}; rename one"
                    )
                owners[name] = group
            options[field.name] = Declared(field.name, group, kinds[field.name], field.default, rule)
    return options


def parse(
    argv: Sequence[str],
    groups: Mapping[str, type],
    lower: Mapping[str, Any] | None = None,
    *,
    prog: str,
    description: str = "",
    reasons: Mapping[str, str] | None = None,
    hint: Callable[[str], str] | None = None,
    last_hint: Callable[[str], str] | None = None,
) -> Parsed:
    """Read a command line. `--help` prints every option, grouped, with the defaults in force, and exits with 0;
    `--help=<group>` those of one group. `--completion=<shell>` prints a script for the shell, and exits with 0.

    Args:
        argv: The words after the program's name.
        groups: title in the help -> config dataclass.
        lower: Values that are in force instead of the declared defaults where nothing is typed.
        prog: The program's name in the help.
        description: What the program does, first in the help.
        reasons: Option -> why its default is what it is, for the help.
        hint: Unknown option -> what to type instead, in words; empty: the options with similar names are told.
        last_hint: The same, for an option that no other has a similar name to.

    Raises:
        ConfigError: unknown flags (each with the nearest one that exists), or a value that is not allowed.
    """
    import tyro

    options, all_groups = declared_options(groups), list(groups)
    defaults = {name: entry.default for name, entry in options.items()} | dict(lower or {})
    if wanted := [word.removeprefix("--help=") for word in argv if word.startswith("--help=")]:
        _require_options_of(wanted[-1], groups, options)
        groups, argv = {wanted[-1]: groups[wanted[-1]]}, ["--help"]
    shell = typed_word(argv, "completion")
    if shell is not None or "--completion" in argv:
        if shell not in _SHELLS:
            raise ConfigError(f"--completion={shell or ''}: there are {', '.join(_SHELLS)}")
        argv, prog = ["--tyro-print-completion", shell], Path(sys.argv[0]).name
    parsed, unknown = tyro.cli(
        _flags_type(groups, options, defaults, reasons or {}, completes=shell is not None),
        args=list(argv),
        prog=prog,
        description=_MORE_HELP.format(description=description, groups=", ".join(all_groups), shells=", ".join(_SHELLS)),
        return_unknown_args=True,
        use_underscores=True,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.FlagConversionOff),
    )
    if unknown:
        _refuse_words(unknown, options, hint, last_hint)
    found = {name: getattr(getattr(parsed, entry.group), name) for name, entry in options.items()}
    typed = {name: value.words for name, value in found.items() if isinstance(value, _Typed)}
    for words in typed.values():  # a flag takes the words behind it, as many as there are
        if len(words) > 1:
            _refuse_words(words[1:], options)
    texts = {name: _from_words(options[name], words) for name, words in typed.items()}
    return Parsed(defaults | check_layer(texts, options, COMMAND_LINE), frozenset(typed))


def _require_options_of(group: str, groups: Iterable[str], options: Mapping[str, Declared]) -> None:
    if group in options:
        raise ConfigError(f"--help={group}: that is an option of --help={options[group].group}")
    if group not in groups:
        raise ConfigError(f"--help={group}: there are {', '.join(groups)}; --help shows all of them")
    if not any(entry.group == group for entry in options.values()):
        raise ConfigError(
            f"--help={group}: there are no such options yet; type what they belong to as well, "
            "--env=NAME or --auxiliary_loss=NAME"
        )


def typed_word(argv: Sequence[str], name: str) -> str | None:
    """The value of one flag, before the rest of the command line can be understood; the last one counts."""
    found = None
    for position, word in enumerate(argv):
        flag, equals, value = word.partition("=")
        if flag in (f"--{name}", f"--{name.replace('_', '-')}"):
            follows = argv[position + 1 : position + 2]
            found = value if equals else next((word for word in follows if not word.startswith("--")), None)
    return found


def require_text(argv: Sequence[str]) -> None:
    """Refuse words that no file could record."""
    for word in argv:
        try:
            word.encode()
        except UnicodeEncodeError:  # Python stands in for bytes that are not UTF-8 with lone surrogates
            raise ConfigError(f"{COMMAND_LINE} holds {word!r}, which is no text in UTF-8") from None


def require_working_directory() -> None:
    """Refuse a folder that was deleted while a shell stood in it: no process can be started from there."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise ConfigError("the working directory does not exist any more; cd to one that does") from None


def typed_flag(argv: Sequence[str], name: str) -> bool:
    """Whether a flag that is on or off is typed, and on."""
    value = typed_word(argv, name)
    is_there = any(word in (f"--{name}", f"--{name.replace('_', '-')}") for word in argv)
    return is_there if value is None else BOOLEANS.get(value.lower(), True)


def asks_for_help(argv: Sequence[str]) -> bool:
    """`--help`, the help of one group, or a script that completes the options."""
    return any(word.partition("=")[0] in ("-h", "--help", "--completion") for word in argv)


def refuse(program: str, argv: Sequence[str], error: BaseException) -> None:
    """Say in one line why a command line is refused; with --debug, after the traceback."""
    from appo.utils.logs import say_error

    if typed_flag(argv, "debug"):
        traceback.print_exception(error)
    say_error(program, str(error))


def check_layer(
    values: Mapping[str, Any],
    options: Mapping[str, Declared],
    layer: str,
    hint: Callable[[str], str] | None = None,
) -> dict[str, Any]:
    """The values of one layer in their declared types.

    Args:
        values: option, or one of its aliases -> value.
        options: those that there are.
        layer: what sets them, for errors.
        hint: as of `parse`.

    Raises:
        ConfigError: `config.json sets unknown option 'lr'`, a value of another type, or one out of range.
    """
    aliases = {alias: entry.name for entry in options.values() for alias in entry.rule.aliases}
    named = {aliases.get(given, given): value for given, value in values.items()}
    if unknown := [name for name in named if name not in options]:
        raise _unknown_options(layer, {name: _instead(name, options, hint) for name in unknown})
    checked = {}
    for name, value in named.items():
        entry = options[name]
        checked[name] = _coerce(entry, value, entry.kind, layer)
        if checked[name] is not None:
            check_value(name, checked[name], entry.rule, layer)
    return checked


_ABOUT_REFERENCE = """\
An option is typed `--name=value`. Defaults are the declared ones: an environment's family, or the fit to it, replaces
many, and `python train_appo.py --help --env=NAME` shows those of a run. This page is written by `{command}`."""


def reference_page(groups: Mapping[str, type], others: Mapping[str, type], command: str) -> str:
    """The reference page of all options in Markdown.

    Args:
        groups: title -> options, of those that are always there.
        others: the same of those that are there one at a time, so that they may have names in common.
        command: what writes the page.
    """
    lines = ["# Options", "", _ABOUT_REFERENCE.format(command=command), ""]
    for together in (groups, *({title: config_type} for title, config_type in others.items())):
        options = declared_options(together)
        for group, config_type in together.items():
            if entries := [entry for entry in options.values() if entry.group == group]:
                lines += [f"## {group}", "", _first_line(config_type), ""]
                lines += ["| option | default | allowed | meaning |", "| --- | --- | --- | --- |"]
                lines += [_reference_row(entry) for entry in entries] + [""]
    return "\n".join(lines)


def _reference_row(entry: Declared) -> str:
    names = ", ".join(f"`--{name}`" for name in (entry.name, *entry.rule.aliases))
    default = "" if entry.default in ("", ()) else f"`{to_text(entry.default)}`"
    return f"| {names} | {default} | {limits(entry.rule)} | {entry.rule.help.replace('|', '/')} |"


def _first_line(config_type: type) -> str:
    told = config_type.__doc__ or ""
    is_made_up = told.startswith(f"{config_type.__name__}(")  # by `dataclass`, where there is none
    return "" if is_made_up else told.partition("\n")[0]


def _flags_type(
    groups: Mapping[str, type],
    options: Mapping[str, Declared],
    defaults: Mapping[str, Any],
    reasons: Mapping[str, str],
    *,
    completes: bool,
) -> type[Any]:
    """The same options as dataclasses that tyro understands, whose typed values come back as `_Typed`."""
    sections = []
    for group, config_type in groups.items():
        fields = [
            (
                name,
                _flag(entry, defaults[name], reasons.get(name, ""), completes=completes),
                dataclasses.field(default=defaults[name]),
            )
            for name, entry in options.items()
            if entry.group == group
        ]
        section = dataclasses.make_dataclass(group, fields)
        section.__doc__ = _first_line(config_type)
        sections.append((group, section, dataclasses.field(default_factory=section)))
    flags = dataclasses.make_dataclass("Flags", sections)
    flags.__doc__ = ""
    return flags


def _flag(entry: Declared, default: Any, reason: str, *, completes: bool) -> Any:
    import tyro

    primitive: Any = tyro.constructors.PrimitiveConstructorSpec(
        nargs=(0, 1),
        metavar=_metavar(entry.kind),
        instance_from_str=lambda words: _Typed(tuple(words)),
        is_instance=lambda _: True,
        str_from_instance=lambda value: [to_text(value)],
        # Only for a shell: what is typed is refused in our own words.
        choices=(("True", "False") if entry.kind is bool else entry.rule.choices) or None if completes else None,
    )
    shown = to_text(default) if default not in ("", ()) else "none"
    shown += f" for this environment ({reason})" if reason else ""
    hint = "; ".join(filter(None, (f"default: {shown}", limits(entry.rule))))
    described = tyro.conf.arg(
        help=entry.rule.help,
        help_behavior_hint=f"({hint})",
        aliases=tuple(f"--{alias}" for alias in entry.rule.aliases),
    )
    return Annotated[Any, primitive, described]


def _refuse_words(
    words: Sequence[str],
    options: Mapping[str, Declared],
    hint: Callable[[str], str] | None = None,
    last_hint: Callable[[str], str] | None = None,
) -> NoReturn:
    """Refuse words that belong to no option: all unknown options at once, without them the first other word."""
    flags = [word.partition("=")[0] for word in words if word.startswith("-") and not _NEGATIVE.match(word)]
    if flags:
        instead: dict[str, str] = {}
        for flag in flags:
            name = flag.lstrip("-").replace("-", "_")
            if flag.startswith("--"):
                instead[name] = _instead(name, options, hint, last_hint)
            else:
                instead[flag] = f"type --{name}=VALUE" if name in _names(options) else "options are typed --name=value"
        raise _unknown_options(COMMAND_LINE, instead)
    name = words[0].partition("=")[0].replace("-", "_")
    if name in _names(options):
        raise ConfigError(f"{COMMAND_LINE} holds {words[0]!r}; did you mean --{words[0]}?")
    raise ConfigError(f"{COMMAND_LINE} holds {words[0]!r}, which belongs to no option; options are typed --name=value")


def _unknown_options(layer: str, instead: Mapping[str, str]) -> ConfigError:
    """The error for options that there are not; name -> what to type instead, empty where nothing is known."""
    if len(instead) == 1:
        ((name, told),) = instead.items()
        return ConfigError(f"{layer} sets unknown option {name!r}" + (f"; {told}" if told else ""))
    each = [f"{name!r}" + (f" ({told})" if told else "") for name, told in instead.items()]
    return ConfigError(f"{layer} sets unknown options: {', '.join(each)}")


def _instead(
    name: str,
    options: Mapping[str, Declared],
    hint: Callable[[str], str] | None = None,
    last_hint: Callable[[str], str] | None = None,
) -> str:
    """What to type instead of an unknown option; empty where nothing is known."""
    if hint is not None and (told := hint(name)):
        return told
    switched_off = options.get(name.removeprefix("no_"))
    if switched_off is not None and switched_off.kind is bool:
        return f"type --{switched_off.name}=False"
    if nearest := nearest_names(name, _names(options)):
        return f"did you mean {' or '.join(nearest)}?"
    return last_hint(name) if last_hint is not None else ""


def _names(options: Mapping[str, Declared]) -> list[str]:
    return [name for entry in options.values() for name in (entry.name, *entry.rule.aliases)]


def _metavar(kind: Any) -> str:
    kind, _ = _without_none(kind)
    if typing.get_origin(kind) is tuple:
        part = _METAVARS[typing.get_args(kind)[0]]
        return f"{part},{part},..."
    return _METAVARS[kind]


def _without_none(kind: Any) -> tuple[Any, bool]:
    """A type, and whether None is allowed besides."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        (inner,) = [part for part in typing.get_args(kind) if part is not types.NoneType]
        return inner, True
    return kind, False


def _from_words(entry: Declared, words: tuple[str, ...]) -> Any:
    """Text for `_coerce`, or what a flag without a value means."""
    if words:
        return words[0]
    if _without_none(entry.kind)[0] is bool:
        return True
    raise ConfigError(f"{COMMAND_LINE} sets {entry.name} without a value; type --{entry.name}={_metavar(entry.kind)}")


def _coerce(entry: Declared, value: Any, kind: Any, layer: str) -> Any:
    """A value of any layer in its declared type: text is read, a whole float is an integer, a list is a tuple."""
    kind, may_be_none = _without_none(kind)
    if value is None or (isinstance(value, str) and value.lower() == "none" and kind is not str):
        if may_be_none:
            return None
        raise ConfigError(f"{layer} sets {entry.name}=None; expected {_expected(entry, kind)}")
    if typing.get_origin(kind) is tuple:
        part = typing.get_args(kind)[0]
        values = [word for word in value.split(",") if word.strip()] if isinstance(value, str) else value
        if not isinstance(values, list | tuple):
            raise ConfigError(f"{layer} sets {entry.name}={value!r}; expected {_expected(entry, kind)}")
        return tuple(_coerce(entry, each, part, layer) for each in values)
    try:
        read = _READERS[kind](value)
        if kind is float and not (math.isfinite(read) or entry.rule.may_be_infinite):
            raise ValueError
    except (ValueError, ArithmeticError):
        raise ConfigError(f"{layer} sets {entry.name}={value!r}; expected {_expected(entry, kind)}") from None
    return read


def _expected(entry: Declared, kind: Any) -> str:
    names = {bool: "True or False", int: "a whole number such as 100 or 1e7", str: "text in UTF-8"}
    names[float] = "a number" if entry.rule.may_be_infinite else "a finite number"
    return names[kind] if kind in names else f"{names[typing.get_args(kind)[0]]}, or several with commas between"


def _read_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in BOOLEANS:
        return BOOLEANS[value.lower()]
    raise ValueError


def _read_int(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError
    number = Decimal(value)  # exact, where float("1e23") is not
    if not number.is_finite() or abs(number) > _MAX_INTEGER or number != number.to_integral_value():
        raise ValueError
    return int(number)


def _read_float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError
    number = float(value)
    if math.isnan(number):
        raise ValueError
    return number


def _read_str(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    value.encode()  # raises a ValueError where the words of a shell, or a file, were no text
    return value


_READERS: dict[Any, Any] = {bool: _read_bool, int: _read_int, float: _read_float, str: _read_str}
