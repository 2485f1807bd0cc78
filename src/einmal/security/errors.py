"""Errors of security settings, of the files they name, and of an exchange. The client turns them into its own."""

from __future__ import annotations


class SecuritySettingError(ValueError):
    """A setting contradicts another, or names an unusable file. ``hint``: what to do."""

    def __init__(self, meaning: str, hint: str) -> None:
        super().__init__(meaning)
        self.meaning = meaning
        self.hint = hint


class SaslError(Exception):
    """The exchange cannot continue: the broker does not follow it, or does not know the password either."""


class TokenError(Exception):
    """No OAuth token is available. ``may_pass``: a later attempt may succeed."""

    def __init__(self, reason: str, *, may_pass: bool) -> None:
        super().__init__(reason)
        self.may_pass = may_pass
