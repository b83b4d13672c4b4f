"""A row becomes a text or a conversation with its answer, and a row that cannot names the key."""

import json
from typing import Any

import pytest

from services.rollout.config import FormatConfig
from services.trainer.offline.errors import RowFault
from services.trainer.offline.samples import Conversation, Text, samples

ASKED = {"role": "user", "content": "2+2="}
SAID = {"role": "assistant", "content": "4"}
WRONG = {"role": "assistant", "content": "5"}
SYSTEM = {"role": "system", "content": "Add."}


def conversation(*messages: dict[str, Any], answer_at: int, tools: tuple[Any, ...] = ()) -> Conversation:
    return Conversation(messages, answer_at, tools)


@pytest.mark.parametrize("messages", [[ASKED, SAID], json.dumps([ASKED, SAID])])
def test_the_last_message_of_a_row_is_its_answer(messages: object) -> None:
    (found,) = samples({"message": messages}, FormatConfig(), "sft")
    assert found == conversation(ASKED, SAID, answer_at=1)


def test_plain_texts_become_a_conversation_with_the_system_prompt_before_it() -> None:
    layout = FormatConfig(prompt_type="plaintext", prompt_key="q", response_key="a", system_prompt="Add.")
    (found,) = samples({"q": "2+2=", "a": 4}, layout, "sft")
    assert found == conversation(SYSTEM, ASKED, SAID, answer_at=2)


def test_the_rows_own_system_prompt_goes_before_the_configurations() -> None:
    layout = FormatConfig(prompt_type="plaintext", system_prompt_key="s", system_prompt="Subtract.")
    (found,) = samples({"s": "Add.", "prompt": "2+2=", "response": "4"}, layout, "sft")
    assert found == conversation(SYSTEM, ASKED, SAID, answer_at=2)


def test_a_conversation_that_has_a_system_message_keeps_it() -> None:
    layout = FormatConfig(system_prompt="Subtract.")
    (found,) = samples({"message": [SYSTEM, ASKED, SAID]}, layout, "sft")
    assert found == conversation(SYSTEM, ASKED, SAID, answer_at=2)


def test_chat_pairs_hold_messages_under_both_keys() -> None:
    (found,) = samples({"prompt": [SYSTEM, ASKED], "response": SAID}, FormatConfig(prompt_type="chatpair"), "sft")
    assert found == conversation(SYSTEM, ASKED, SAID, answer_at=2)


@pytest.mark.parametrize(
    ("layout", "row"),
    [
        (FormatConfig(prompt_type="plaintext"), {"prompt": "2+2=", "chosen": "4", "rejected": "5"}),
        (FormatConfig(), {"message": [ASKED], "chosen": [SAID], "rejected": [WRONG]}),
        (FormatConfig(), {"message": [ASKED], "chosen": json.dumps([SAID]), "rejected": "5"}),
        (FormatConfig(prompt_type="chatpair"), {"prompt": ASKED, "chosen": SAID, "rejected": WRONG}),
    ],
)
def test_a_pair_is_the_chosen_answer_and_then_the_rejected_one(layout: FormatConfig, row: dict[str, Any]) -> None:
    assert samples(row, layout, "dpo") == (
        conversation(ASKED, SAID, answer_at=1),
        conversation(ASKED, WRONG, answer_at=1),
    )


def test_an_answer_that_happens_to_be_json_is_a_text_unless_it_holds_messages() -> None:
    layout = FormatConfig(prompt_type="chatpair")
    (found,) = samples({"prompt": [ASKED], "response": "[1, 2]"}, layout, "sft")
    assert found == conversation(ASKED, {"role": "assistant", "content": "[1, 2]"}, answer_at=1)


def test_a_text_is_learned_whole() -> None:
    layout = FormatConfig(prompt_type="plaintext", prompt_key="text")
    assert samples({"text": "once"}, layout, "cpt") == (Text("once"),)


def test_tools_may_be_json_and_nulls_that_a_reader_filled_in_are_gone() -> None:
    tool = {"name": "add", "parameters": {"a": "int", "b": None}}
    called = {"role": "assistant", "content": None, "tool_calls": [{"name": "add", "id": None}]}
    (found,) = samples(
        {"message": [ASKED | {"name": None}, called], "tools": json.dumps([tool])}, FormatConfig(), "sft"
    )
    said = {"role": "assistant", "content": "", "tool_calls": [{"name": "add"}]}
    tools = ({"name": "add", "parameters": {"a": "int"}},)
    assert found == conversation(ASKED, said, answer_at=1, tools=tools)


PLAIN = FormatConfig(prompt_type="plaintext")


@pytest.mark.parametrize(
    ("row", "layout", "schema", "message"),
    [
        ({"messages": []}, FormatConfig(), "sft", "'message' is no key (there: 'messages')"),
        ({"message": None}, FormatConfig(), "sft", "'message' is null"),
        ({"message": []}, FormatConfig(), "sft", "'message' holds nothing, not a list of messages"),
        ({"message": "{"}, FormatConfig(), "sft", "'message' is a text that is no JSON"),
        ({"message": ["hello"]}, FormatConfig(), "sft", "'message'[0] is a str, not a message"),
        ({"message": [{"content": "x"}]}, FormatConfig(), "sft", "'message'[0] has no role"),
        ({"message": [{"role": "user"}]}, FormatConfig(), "sft", "'message'[0] has no content"),
        ({"message": [ASKED]}, FormatConfig(), "sft", "'message' ends with a message of 'user'"),
        (
            {"message": [ASKED]},
            FormatConfig(enable_concatenated_multi_turn=True),
            "sft",
            "'message' holds no message of the assistant",
        ),
        ({"prompt": "2+2="}, PLAIN, "sft", "'response' is no key (there: 'prompt')"),
        ({"prompt": ["2+2="], "response": "4"}, PLAIN, "sft", "'prompt' holds a list, not a text"),
        ({"prompt": "2+2=", "chosen": "4", "rejected": None}, PLAIN, "dpo", "'rejected' is null"),
        ({"prompt": None}, PLAIN, "cpt", "'prompt' is null"),
    ],
)
def test_a_malformed_row_names_the_key(row: dict[str, Any], layout: FormatConfig, schema: Any, message: str) -> None:
    with pytest.raises(RowFault) as caught:
        samples(row, layout, schema)
    assert message in str(caught.value)
