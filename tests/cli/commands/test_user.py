"""Claims about ``einmal user``: users with SCRAM passwords, and passwords that come from no argument."""

from __future__ import annotations

from pathlib import Path

import pytest

from einmal.client import Admin
from tests.cli.running import Cli

pytestmark = pytest.mark.system


def test_a_user_is_created_listed_and_deleted(cli: Cli) -> None:
    created = cli(
        "user", "create", "ann", "--iterations", "4096", "--format", "json", stdin="ann's password\n"
    ).document
    assert created == [{"user": "ann", "mechanism": "SCRAM-SHA-512", "iterations": 4_096, "status": "set"}]
    cli("user", "create", "ann", "-m", "SCRAM-SHA-256", stdin="ann's password")
    listed = [each for each in cli("user", "list", "--format", "json").document if each["user"] == "ann"]
    assert [(each["mechanism"], each["iterations"]) for each in listed] == [
        ("SCRAM-SHA-256", 16_384),
        ("SCRAM-SHA-512", 4_096),
    ]
    cli("user", "delete", "ann", "-m", "SCRAM-SHA-256")
    assert cli("user", "list").lines[-1].split() == ["ann", "SCRAM-SHA-512", "4096"]
    cli("user", "delete", "ann")
    assert "ann" not in [each["user"] for each in cli("user", "list", "--format", "json").document]


def test_a_missing_user_is_reported_and_the_others_are_deleted(cli: Cli) -> None:
    cli("user", "create", "ben", stdin="x")
    result = cli("user", "delete", "nobody", "ben", "--format", "json", status=1)
    assert [(each["user"], each["status"]) for each in result.document] == [("nobody", "failed"), ("ben", "deleted")]
    assert result.errors[0].startswith("error: RESOURCE_NOT_FOUND (91)")


def test_a_password_comes_from_a_file_or_a_reference(cli: Cli, cluster: str, tmp_path: Path) -> None:
    plain, keyed = tmp_path / "password", tmp_path / "secrets.properties"
    plain.write_text("from a file\n")
    keyed.write_text("password=from a key\n")
    for name, source in (("cam", str(plain)), ("dan", f"${{file:{keyed}:password}}"), ("eva", "-")):
        cli("user", "create", name, "--password-file", source, stdin="from stdin\n")
    with Admin(bootstrap_servers=cluster) as admin:
        users = admin.describe_scram_users(["cam", "dan", "eva"])
        assert list(users) == ["cam", "dan", "eva"]
        for name in users:
            admin.delete_scram_credential(name, "SCRAM-SHA-512")


@pytest.mark.parametrize("stdin", ["", "\n", "two\nlines", "x" * 5_000])
def test_a_password_that_is_none_is_refused(cli: Cli, stdin: str) -> None:
    assert "password" in " ".join(cli("user", "create", "fay", "--password-file", "-", stdin=stdin, status=2).errors)


@pytest.mark.parametrize("iterations", ["4095", "16385"])
def test_iterations_have_bounds(cli: Cli, iterations: str) -> None:
    result = cli("user", "create", "gus", "--iterations", iterations, stdin="x", status=1)
    assert result.errors[0].startswith("error: UNACCEPTABLE_CREDENTIAL (93)")


@pytest.mark.parametrize("options", [(), ("--password-file", "-")])
def test_no_error_shows_a_password(cli: Cli, options: tuple[str, ...]) -> None:
    failed = cli("user", "create", "hal", *options, stdin=b"hunter\xff\n", status=2)
    assert any("the password is not UTF-8" in line for line in failed.errors)
    assert not any("hunter" in line for line in failed.errors)
    too_long = cli("user", "create", "hal", *options, stdin=b"\xc3\xbc" * 9_000, status=2)
    assert any("more than 4096 characters" in line for line in too_long.errors)
    secret = cli("user", "list", "-X", "client.id=hunter\udcff", status=1)
    assert any("a text with '\\udcff' is not UTF-8" in line for line in secret.errors)
