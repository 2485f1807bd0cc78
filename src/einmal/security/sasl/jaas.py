"""Java's ``sasl.jaas.config``: one login module with its options. Pure."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from einmal.security.errors import SecuritySettingError

NAME: Final = "sasl.jaas.config"
_VALUE: Final = r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|[^\s"\';=]+'
_ENTRY: Final = re.compile(
    rf"\s*([\w.$]+)\s+(required|requisite|sufficient|optional)((?:\s+[\w.\-]+\s*=\s*(?:{_VALUE}))*)\s*;\s*",
    re.IGNORECASE,
)
_OPTION: Final = re.compile(rf"([\w.\-]+)\s*=\s*({_VALUE})")
_MODULES: Final = {
    "org.apache.kafka.common.security.plain.PlainLoginModule": ("PLAIN",),
    "org.apache.kafka.common.security.scram.ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule": ("OAUTHBEARER",),
}


class LoginModule(NamedTuple):
    """``mechanisms``: those that the module can authenticate by. ``options``: unquoted."""

    mechanisms: tuple[str, ...]
    options: dict[str, str]

    def __repr__(self) -> str:
        return f"LoginModule({self.mechanisms}, {sorted(self.options)})"


def parse_jaas(text: str) -> LoginModule:
    """Raises SecuritySettingError, whose text never quotes the value."""
    match = _ENTRY.fullmatch(text)
    if match is None:
        raise SecuritySettingError(
            f"{NAME} is not one login module with its options",
            'write: org.apache.kafka.common.security.scram.ScramLoginModule required username="..." password="..."; '
            "(with the semicolon)",
        )
    # Platforms that shade Kafka's classes put a prefix before the package (kafkashaded.org.apache...).
    module = next(
        (class_name for class_name in _MODULES if match[1] == class_name or match[1].endswith(f".{class_name}")), None
    )
    if module is None:
        raise SecuritySettingError(
            f"{NAME}: the login module {match[1]} is not supported",
            f"supported are {', '.join(class_name.rpartition('.')[2] for class_name in _MODULES)}",
        )
    return LoginModule(_MODULES[module], {name: _unquoted(value) for name, value in _OPTION.findall(match[3])})


def _unquoted(value: str) -> str:
    return re.sub(r"\\(.)", r"\1", value[1:-1]) if value[0] in "\"'" else value
