"""The claim that travels in place of a message too large for the bus."""

from typing import ClassVar

from pydantic import Field

from schemas.message import Message


class BlobClaimed(Message):
    """The encoded message lies in `chunks` chunks of the blob stream under the subject of its digest."""

    schema_name: ClassVar[str] = "blob_claimed"

    digest: str
    size_bytes: int = Field(ge=1)
    chunks: int = Field(ge=1)
