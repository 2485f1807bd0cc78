"""List the commands and their options in docs/cli.md, from the program that reads them.

Usage: python -m tools.list_commands [--check]
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main
from tools.generated_page import write_or_check

from einmal.cli.app import app

PAGE = Path(__file__).parent.parent / "docs" / "cli.md"
HEAD = """# Command line

Data goes to stdout, messages to stderr. `--format json` prints one document; `topic produce` and `topic consume` print
JSON Lines, a line per record, `run` a line per batch, and `top` a line per look. `--format yaml` prints the same, the
document or line as a document of YAML that begins with `---`. A failure prints an `error:` with the name, number and
meaning of Kafka's error code, a `hint:`, and a page to `see:` where the hint alone does not help. Generated from
`src/einmal/cli` by `tools/list_commands.py`; a test checks that the page is up to date.

| exit status | meaning |
|---|---|
| 0 | success; `simulate`: no anomaly; `demo`: the verdict is exactly-once |
| 1 | failure, or an anomaly was found; stderr has the cause and next step; `txn doctor`, `cluster health`: a fault |
| 2 | wrong usage: an invalid option, argument or declaration; the `demo` could not run |
| 3 | `run`, `ingest`, `mirror`: refused, and a restart does not help; stderr names the reason |
| 4 | `run`: fenced, another instance runs under the name; do not restart this one |
| 130 | interrupted (a broker or a pipeline that stops cleanly ends with 0) |

The commands `pipeline`, `topic`, `group`, `cluster` and `txn` work on any Kafka cluster; `run` and `explain` need
`einmal[spark]`. Of every verb `list` there is the short name `ls`, and of `delete` `rm`; `cluster txn`,
`pipeline run` and `pipeline explain` are `txn`, `run` and `explain`.
`einmal --install-completion` makes bash, zsh or fish complete commands, options, and the names of the cluster's topics,
groups and transactional ids.

Every verb has `-q` (`--quiet`: no notes and no progress on stderr; errors, hints and warnings remain), `-v`
(`--verbose`: [log events](log-events.md) on stderr from level INFO, such as each connection; text on a terminal, else
as JSON) and `-vv` (from DEBUG, such as each answer of a broker).

## Connection profiles

Verbs that connect to a cluster, all but `bench`, do it with the settings of a profile:

```console
$ einmal profile create production -b kafka.example.com:9093 -X security.protocol=SASL_SSL \\
    -X sasl.mechanism=SCRAM-SHA-512 -X sasl.username=orders -X 'sasl.password=${env:PASSWORD}'
$ einmal topic list
$ einmal topic list --profile test
```

A setting comes from the first of these that has it: an option (`--brokers`), `-X`, the file of `--command-config`, the
environment (`KAFKA_BROKERS`, `KAFKA_SASL_PASSWORD`, ...), the profile, the default. Where the environment overrides the
profile, a warning names the settings. The profile is the one of `--profile`, else of `EINMAL_PROFILE` (empty: none),
else the one in use: the last that `profile create` or `profile use` has named.

Profiles are in `config.toml` in einmal's folder of the user's configuration (`$XDG_CONFIG_HOME/einmal`, or
`~/.config/einmal`), a table `[profiles.NAME]` each. Only its owner can read it: it is written with mode 0600, and
another mode is a warning. `profile show` hides passwords and other secrets. References such as `${env:PASSWORD}` and
`${file:PATH:KEY}` are kept, and resolved at each use: with them no secret is in the file. `profile create` and `use`
write the file anew, without its comments. `run`, `mirror` and `ingest` have their clusters in their own files, and use
no profile.
"""

_IN_EVERY_VERB = {"quiet", "verbose", "profile"}
"""Options that the head of the page describes."""


def page() -> str:
    lines = [HEAD]
    for path, command in _commands("einmal", typer.main.get_command(app)):
        context = command.make_context(path, [], resilient_parsing=True)
        arguments = [
            parameter.make_metavar(context) for parameter in command.params if parameter.param_type_name == "argument"
        ]
        lines += [f"## `{' '.join((path, *arguments))}`\n", " ".join(command.help.split()) + "\n"]
        lines += ["| option | default | |", "|---|---|---|"]
        options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
        lines += [_row(option) for option in options if option.name not in _IN_EVERY_VERB]
        lines.append("")
    return "\n".join(lines)


def _commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """The commands that do something, in the order of --help."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
    else:
        for name, subcommand in inner.items():
            yield from _commands(f"{path} {name}", subcommand)


def _row(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in option.opts)
    # How many jobs there are by default depends on the machine.
    has_default = option.default not in (None, ()) and option.default is not False and option.name != "jobs"
    default = "required" if option.required else f"`{option.default}`" if has_default else ""
    return f"| {names} | {default} | {option.help or ''} |"


if __name__ == "__main__":
    write_or_check(PAGE, page, "tools.list_commands")
