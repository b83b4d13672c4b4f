"""Conversations that a serving explorer has collected, and the tasks by which they become experiences."""

from typing import ClassVar

from pydantic import Field

from schemas.message import Message


class ConversationsFinished(Message):
    """How many groups of conversations a history has finished since it began: each wants one task to be an answer to.

    A history is the database of one or several serving explorers, named by an id of its own.
    """

    schema_name: ClassVar[str] = "conversations_finished"

    run: str
    history: str
    explorer: str
    groups: int = Field(ge=0)
    updated_at: float = 0.0


class SlotClaimed(Message):
    """The task `ordinal` is answered by group `group` of `history`, and by no other: written before it is published."""

    schema_name: ClassVar[str] = "slot_claimed"

    run: str
    ordinal: int = Field(ge=0)
    history: str
    group: int = Field(ge=1)
    claimed_at: float = 0.0
