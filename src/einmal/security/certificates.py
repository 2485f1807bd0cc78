"""Fields of a certificate: the distinguished name of its owner, and the end of its validity. Pure.

Reads the few fields of X.509 (RFC 5280, 4.1) that Python's ``ssl`` does not return, or not exactly. The certificate is
one that OpenSSL has parsed or verified.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, NamedTuple

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
"""Attribute types of RFC 2253, 2.3: other types of attributes are written as numbers, their values in hexadecimal."""
_TEXTS: Final = {
    0x0C: "utf-8",
    0x13: "ascii",
    0x14: "latin-1",
    0x16: "ascii",
    0x1B: "latin-1",
    0x1C: "utf-32-be",
    0x1E: "utf-16-be",
}
"""Encodings of the types of strings, by tag."""
_ESCAPED: Final = frozenset(',=+<>#;"\\')
_VERSION: Final = 0xA0
_FIELDS_MIN: Final = 5
_UTC_TIME: Final = 0x17


class _Element(NamedTuple):
    """``whole``: with the tag and length in front of ``content``."""

    tag: int
    content: bytes
    whole: bytes


def subject_of(der: bytes) -> str:
    """The owner's name by RFC 2253, as Java's ``X500Principal.getName()`` has it. Raises ValueError for broken DER."""
    names = _elements(_fields(der)[4].content)
    return ",".join("+".join(map(_attribute, _elements(name.content))) for name in reversed(names))


def valid_until(der: bytes) -> datetime:
    """The end of its validity. Raises ValueError for broken DER."""
    _begin, time = _elements(_fields(der)[3].content)
    text = time.content.decode("ascii")
    if time.tag == _UTC_TIME:
        # RFC 5280, 4.1.2.5.1: years from 1950 to 2049.
        text = ("19" if int(text[:2]) >= 50 else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _fields(der: bytes) -> list[_Element]:
    """Serial number, signature algorithm, issuer, validity, subject, and what follows."""
    if not (certificate := _elements(der)) or not (contents := _elements(certificate[0].content)):
        raise ValueError("a certificate without content")
    fields = _elements(contents[0].content)
    fields = fields[1:] if fields and fields[0].tag == _VERSION else fields
    if len(fields) < _FIELDS_MIN:
        raise ValueError("a certificate without a subject")
    return fields


def _attribute(element: _Element) -> str:
    identifier, value = _elements(element.content)
    number = _dotted(identifier.content)
    keyword = _KEYWORDS.get(number)
    encoding = _TEXTS.get(value.tag)
    if keyword is None or encoding is None:
        return f"{keyword or number}=#{value.whole.hex()}"
    return f"{keyword}={_escaped(value.content.decode(encoding))}"


def _escaped(text: str) -> str:
    body = text.strip(" ")
    before, after = len(text) - len(text.lstrip(" ")), len(text) - len(text.rstrip(" "))
    if not body:
        return "\\ " * len(text)
    escaped = "".join(
        "\\00" if character == "\0" else "\\" + character if character in _ESCAPED else character for character in body
    )
    return "\\ " * before + escaped + "\\ " * after


def _dotted(content: bytes) -> str:
    numbers, number = [], 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _elements(data: bytes) -> list[_Element]:
    """The elements of DER that follow each other. Raises ValueError."""
    elements: list[_Element] = []
    position = 0
    while position < len(data):
        start = position
        if len(data) - position < 2:
            raise ValueError("a certificate that ends within an element")
        tag, size = data[position], data[position + 1]
        position += 2
        if size & 0x80:
            count = size & 0x7F
            size = int.from_bytes(data[position : position + count], "big")
            position += count
        end = position + size
        if end > len(data):
            raise ValueError("a certificate that ends within an element")
        elements.append(_Element(tag, data[position:end], data[start:end]))
        position = end
    return elements
