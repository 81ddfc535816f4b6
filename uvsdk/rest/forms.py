"""A multipart form (RFC 7578), read into memory: what ``curl -F user=ada -F sample=@probe.wav`` sends.

Needs starlette and python-multipart, of the extras ``server`` and ``agent``.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Final

from python_multipart.exceptions import FormParserError
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from uvsdk.errors import WireError

CONTENT_TYPE: Final = "multipart/form-data"
_FIELDS = 8
_FIELD_BYTES = 4096


class _InMemory(MultiPartParser):
    """The parser, which would put a sample of more than 1 MiB into the folder for temporary files."""

    spool_max_size = 1 << 62
    max_file_size = 1 << 62  # its name before starlette 0.46


def is_form(headers: Mapping[str, str]) -> bool:
    """Whether the body is such a form."""
    return headers.get("content-type", "").partition(";")[0].strip().lower() == CONTENT_TYPE


async def read(headers: Headers, body: AsyncIterator[bytes]) -> dict[str, str]:
    """The fields of a form, as the JSON of the same request has them: a file in base64.

    How long the body may be is for the caller to bound.

    Raises:
        WireError: not a form, a field twice, more than eight, or more than one file.
    """
    try:
        form = await _InMemory(
            headers, _generated(body), max_files=1, max_fields=_FIELDS, max_part_size=_FIELD_BYTES
        ).parse()
    except (MultiPartException, FormParserError, KeyError, LookupError, ValueError) as error:
        raise WireError("the body is not a multipart form of one file and a few short fields") from error
    found: dict[str, str] = {}
    for name, value in form.multi_items():
        if name in found:
            raise WireError("the form has the same field twice")
        if name == "sample" and not isinstance(value, UploadFile):
            raise WireError("the sample of a form is a file: -F sample=@probe.wav")
        found[name] = base64.b64encode(await value.read()).decode() if isinstance(value, UploadFile) else value
    await form.close()
    return found


async def _generated(body: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    async for piece in body:
        yield piece
