"""Writes the pages of ``docs/`` that say what the program says, from the program: ``python -m tests.reference``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from textwrap import wrap
from typing import Any, TypeVar

import typer.main
from pydantic import BaseModel, ByteSize

from coordinator.__main__ import app
from coordinator.settings import CONFIG_VARIABLE, PREFIX, AddressElsewhere, AddressPattern, Settings
from coordinator.transitions import DELIVERY, TRANSACTION, DeliveryState, TxnState
from tests.standard import MUST, MUST_NOT, Sentence, rows
from tests.standard.parts import PARTS

_DOCS = Path(__file__).resolve().parent.parent / "docs" / "reference"
_WRITTEN = "<!-- Written by python -m tests.reference; a test compares. -->"


def settings_page() -> str:
    lines = [
        "# Settings",
        "",
        _WRITTEN,
        "",
        "A setting is taken from the command line, else from the environment, else from one TOML file",
        f"(`--config FILE` or `{CONFIG_VARIABLE}`), else it has its default. An unknown or wrong setting is an error",
        "that names it and where it came from; the service does not start. Sizes are bytes, or text with a unit:",
        '`"64 MiB"`. In TOML, the part of a name before the dot is a table.',
        "",
        "| setting | variable | default | meaning |",
        "|---|---|---|---|",
        *_settings(Settings, ""),
        "",
        "A variable with a list: `listen` is parted by commas; `addresses.patterns`, `addresses.elsewhere` are JSON.",
        "",
        "## addresses.patterns",
        "",
        "A list of tables; the first whose `match` fits the name of an address counts.",
        "",
        *_keys(AddressPattern),
        "",
        "```toml",
        'listen = ["amqp://127.0.0.1:5672"]',
        "workers = 2",
        "",
        "[addresses]",
        'create = "matching"',
        "",
        "[[addresses.patterns]]",
        'match = "orders.*"',
        'on_expiry = "dead-letter"',
        "max_attempts = 5",
        "",
        "[[addresses.patterns]]",
        'match = "news.*"',
        'routing = "topic"',
        "```",
        "",
        "## addresses.elsewhere",
        "",
        "A list of tables: the first whose `match` fits the name of an address says which service has it ([one service",
        "for each store](../explanation/beyond-one-postgresql.md)); all others are here. Dead letters have a name of",
        "their own: `%DLQ%billing.*` sends on who asks here for those of `billing.*`. The scheme of `url` is one of",
        "those of `listen`: clients go there in the way they came here.",
        "",
        *_keys(AddressElsewhere),
        "",
        "```toml",
        "[[addresses.elsewhere]]",
        'match = "billing.*"',
        'url = "amqp://billing.example:5672"',
        "```",
    ]
    return "\n".join(lines) + "\n"


def _keys(table: type[BaseModel]) -> Iterator[str]:
    yield from ("| key | default | meaning |", "|---|---|---|")
    for name, field in table.model_fields.items():
        default = "required" if field.is_required() else _default(field.default)
        yield f"| `{name}` | {default} | {field.description} |"


def _settings(section: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _settings(field.annotation, f"{prefix}{name}.")
            continue
        path = f"{prefix}{name}"
        variable = PREFIX + path.upper().replace(".", "__")
        yield f"| `{path}` | `{variable}` | {_default(field.default)} | {field.description} |"


def _default(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, ByteSize):
        return "`" + value.human_readable(separator=" ").replace(".0 ", " ") + "`"
    if isinstance(value, tuple):
        return ", ".join(f"`{each}`" for each in value) or "none"
    return f"`{value}`"


def command_line_page() -> str:
    lines = ["# Command line", "", _WRITTEN, ""]
    lines += [
        "Exit status: 0 done; 1 it could not be done (the error says why); 2 the command or a setting is wrong, or",
        "what it has to say cannot be written to the standard output.",
        "",
    ]
    # Of the version of click that typer comes with; it has no types of its own.
    root: Any = typer.main.get_command(app)
    lines += ["Before the command:", "", *_options(root), ""]
    for path, command in _commands(root, ()):
        arguments = [each for each in command.params if each.param_type_name == "argument"]
        options = list(_options(command))
        usage = " ".join(["coordinator", *path, *(_argument(each) for each in arguments)])
        lines += [f"## {usage}", "", *(command.help or "").strip().splitlines(), "", *options]
        if options:
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _options(command: Any) -> Iterator[str]:
    shell = ("help", "install_completion", "show_completion")
    for each in command.params:
        if each.param_type_name == "option" and each.name not in shell:
            value = "" if each.is_flag else f" {_metavar(each)}"
            item = f"- `{each.opts[0]}{value}`: {each.help}"
            yield from wrap(item, 120, subsequent_indent="  ", break_on_hyphens=False)


def _argument(argument: Any) -> str:
    """In brackets where it may be left out."""
    name = _metavar(argument)
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper().replace("_", "-"))


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, each in getattr(command, "commands", {}).items():
        if getattr(each, "commands", None):
            yield from _commands(each, (*path, name))
        else:
            yield (*path, name), each


S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


def _drawn(table: Mapping[tuple[S, E], S], beginning: tuple[str, S], ends: tuple[S, ...]) -> Iterator[str]:
    """The picture of a table of transitions, and the table."""

    def name(state: Enum) -> str:
        return str(state.value).replace("-", "_")

    event, first = beginning
    yield from ("```mermaid", "stateDiagram-v2", f"    [*] --> {name(first)}: {event}")
    together: dict[tuple[S, S], list[str]] = {}
    for (state, met), target in table.items():
        together.setdefault((state, target), []).append(str(met.value))
    for (state, target), events in together.items():
        if state is not target:
            yield f"    {name(state)} --> {name(target)}: {', '.join(events)}"
    yield from (f"    {name(state)} --> [*]" for state in ends)
    yield from ("```", "", "| state | event | becomes |", "|---|---|---|")
    yield from (f"| {state.value} | {met.value} | {target.value} |" for (state, met), target in table.items())


def states_page() -> str:
    lines = [
        "# The life of a transaction, and that of a delivery",
        "",
        _WRITTEN,
        "",
        "From `coordinator/transitions.py`; an event that a state does not name is refused there.",
        "",
        "## A transaction",
        "",
        *_drawn(TRANSACTION, ("declare", TxnState.ACTIVE), (TxnState.COMMITTED, TxnState.ROLLED_BACK)),
        "",
        "## A delivery",
        "",
        "As one instance sees it: from the moment it has the entry until the store has it, or it is done with.",
        "",
        *_drawn(DELIVERY, ("read, or born leased", DeliveryState.HELD), (DeliveryState.GONE,)),
    ]
    return "\n".join(lines) + "\n"


def standard_page() -> str:
    lines = [
        "# The standard, sentence by sentence",
        "",
        _WRITTEN,
        "",
        "What OASIS AMQP 1.0 (parts 2, 3 and 4), the extensions that the service names, and the mapping of JMS ask of",
        "a server: each MUST, MUST NOT and SHOULD in our own words, with its section. Beside it stand the tests in",
        "`tests/acceptance` that show that it is kept (most send raw frames), or why it is not. What asks nothing of",
        "the service says so, and is not counted.",
        "",
        "| part | MUST and MUST NOT | kept | SHOULD | kept |",
        "|---|---:|---:|---:|---:|",
    ]
    musts = [each for _, part in PARTS for each in part if each.level in (MUST, MUST_NOT) and not each.beside]
    for title, part in PARTS:
        lines.append(
            f"| {title} | {_counted(each for each in part if each.level in (MUST, MUST_NOT))} "
            f"| {_counted(each for each in part if each.level not in (MUST, MUST_NOT))} |"
        )
    lines += ["", f"Of all MUSTs {100 * sum(not each.why for each in musts) // len(musts)} % are kept."]
    for title, part in PARTS:
        lines += ["", f"## {title}", "", "| section | | what it says | kept by |", "|---|---|---|---|", *rows(part)]
    return "\n".join(lines) + "\n"


def _counted(sentences: Iterable[Sentence]) -> str:
    found = [each for each in sentences if not each.beside]
    return f"{len(found)} | {sum(not each.why for each in found)}"


PAGES: dict[str, tuple[Path, Callable[[], str]]] = {
    "settings": (_DOCS / "settings.md", settings_page),
    "command-line": (_DOCS / "command-line.md", command_line_page),
    "standard": (_DOCS / "standard.md", standard_page),
    "states": (_DOCS.parent / "explanation" / "states.md", states_page),
}

if __name__ == "__main__":
    for target, page in PAGES.values():
        target.write_text(page(), encoding="utf-8")
