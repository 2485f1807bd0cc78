"""Why a record cannot be decoded, and why a schema cannot be used.

A ``BadRow`` is the record's fault, and can become a dead letter. All other errors stop a pipeline. No message contains
what the record contains: messages reach logs.
"""

from __future__ import annotations


class BadRow(ValueError):
    """A record that its declared schema does not allow. The name of the class is the reason in lists and metrics."""

    @property
    def class_name(self) -> str:
        return f"{type(self).__module__}.{type(self).__qualname__}"


class MalformedValue(BadRow):
    """The bytes are not in the declared format."""


class InvalidText(BadRow):
    """Text that is not UTF-8, or that UTF-8 cannot represent."""


class WrongType(BadRow):
    """A field has a value of another type, or one that a rule of the schema excludes."""


class OutOfRange(BadRow):
    """A number, date or time that its column cannot hold."""


class MissingField(BadRow):
    """A required field is missing."""


class UnknownField(BadRow):
    """A field that the schema does not have, where the policy for drift is ``discard_row``."""


class UnsupportedChange(BadRow):
    """A truncate, or another change that is none of a row."""


class UnavailableValue(BadRow):
    """A changed row lacks a value that the database has stored out of line (TOAST), and not logged."""


class UnknownSchemaId(BadRow):
    """The registry has no schema with the record's id."""


class UnusableSchema(BadRow):
    """The schema that the record was written with cannot be read as the declared one."""


class ValueTooLarge(BadRow):
    """More bytes than are decoded."""


class NestedTooDeeply(BadRow):
    """More levels than are decoded."""


class SchemaError(Exception):
    """A declared schema cannot be used. ``hint``: what to do."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(f"{reason}\nhint: {hint}" if hint else reason)


class SchemaDrift(Exception):
    """A record has a field that the schema does not have, where the policy for drift is ``freeze``."""


class RegistryUnavailable(Exception):
    """The schema registry did not answer, or refused the request: an outage, not a bad row."""


class SchemaNotFound(LookupError):
    """The schema registry answered that it has no such schema."""
