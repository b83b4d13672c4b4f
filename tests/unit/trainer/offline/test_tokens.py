"""What is learned of a conversation is what a model that samples would have said, and nothing else."""

from typing import Any

import pytest

from services.prepare.tiny import CHAT_TEMPLATE
from services.trainer.offline.errors import RowFault
from services.trainer.offline.samples import Conversation, Text
from services.trainer.offline.tokens import Manner, Tokens, tokenized

MARKED = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% if m['role'] == 'assistant' %}{% generation %}"
    "{{ m['content'] }}<|im_end|>\n{% endgeneration %}{% else %}{{ m['content'] }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PLAIN = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
THINKING = (  # a thought is opened by the prompt, and shown of the last turn alone
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' and loop.last %}<think>none</think>{% endif %}{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>{% endif %}"
)
FORGETFUL = "{{ messages | length }}:{% for m in messages %}{{ m['content'] }}{% endfor %}"


def talk(*contents: str, answer_at: int | None = None) -> Conversation:
    roles = ("user", "assistant")
    messages = [{"role": roles[place % 2], "content": content} for place, content in enumerate(contents)]
    return Conversation(tuple(messages), len(messages) - 1 if answer_at is None else answer_at)


def learned(tokenizer: Any, tokens: Tokens) -> str:
    response = tokens.ids[tokens.prompt_length :]
    return str(tokenizer.decode(response[tokens.action_mask > 0]))


def test_the_answer_is_learned_and_the_prompt_is_what_an_engine_is_given(tokenizer: Any) -> None:
    found = tokenized(tokenizer, talk("2+2=", "4"), Manner())
    given = "<|im_start|>user\n2+2=<|im_end|>\n<|im_start|>assistant\n"
    assert found.ids[: found.prompt_length].tolist() == tokenizer.encode(given)
    assert learned(tokenizer, found) == "4<|im_end|>\n"
    assert found.action_mask.all()


def test_of_several_turns_only_the_last_is_learned_unless_all_are_asked_for(tokenizer: Any) -> None:
    sample = talk("2+2=", "4", "and 1?", "5")
    assert learned(tokenizer, tokenized(tokenizer, sample, Manner())) == "5<|im_end|>\n"
    found = tokenized(tokenizer, sample, Manner(learns_all_turns=True))
    assert learned(tokenizer, found) == "4<|im_end|>\n5<|im_end|>\n"
    assert tokenizer.decode(found.ids[: found.prompt_length]).endswith("2+2=<|im_end|>\n<|im_start|>assistant\n")


def test_marks_of_the_template_and_the_difference_of_prompts_say_the_same(tokenizer: Any) -> None:
    sample = talk("2+2=", "4", "and 1?", "5")
    by_difference = tokenized(tokenizer, sample, Manner(CHAT_TEMPLATE, learns_all_turns=True))
    by_marks = tokenized(tokenizer, sample, Manner(MARKED, learns_all_turns=True))
    assert by_marks.ids.tolist() == by_difference.ids.tolist()
    assert by_marks.prompt_length == by_difference.prompt_length
    assert by_marks.action_mask.tolist() == by_difference.action_mask.tolist()


def test_a_template_of_contents_alone_teaches_plain_continuation(tokenizer: Any) -> None:
    found = tokenized(tokenizer, talk("2+2=", "4\n"), Manner(PLAIN))
    assert tokenizer.decode(found.ids) == "2+2=4\n"
    assert found.prompt_length == 4


def test_a_prompt_that_opens_the_answer_in_another_way_is_shared_as_far_as_it_goes(tokenizer: Any) -> None:
    template = THINKING.replace("<think>{% endif %}", "<think>\n{% endif %}")
    found = tokenized(tokenizer, talk("2+2=", "4"), Manner(template))
    assert learned(tokenizer, found) == "none</think>4<|im_end|>\n"


def test_turns_that_the_template_changes_later_are_not_learned_and_are_counted(tokenizer: Any) -> None:
    found = tokenized(tokenizer, talk("2+2=", "4", "and 1?", "5"), Manner(THINKING, learns_all_turns=True))
    assert learned(tokenizer, found) == "none</think>5<|im_end|>\n"
    assert found.unlearned_turns == 1


def test_a_template_that_changes_what_came_before_is_refused(tokenizer: Any) -> None:
    with pytest.raises(RowFault, match="lays out the messages before the answer in another way"):
        tokenized(tokenizer, talk("2+2=", "4"), Manner(FORGETFUL))
    with pytest.raises(RowFault, match=r"marks them with \{% generation %\}"):
        tokenized(tokenizer, talk("2+2=", "4", "and 1?", "5", "thanks"), Manner(FORGETFUL, learns_all_turns=True))


def test_a_template_that_refuses_a_row_is_told(tokenizer: Any) -> None:
    with pytest.raises(RowFault, match="the chat template refuses it: roles must alternate"):
        tokenized(tokenizer, talk("2+2=", "4"), Manner("{{ raise_exception('roles must alternate') }}"))


def test_of_a_text_all_but_the_first_token_is_learned(tokenizer: Any) -> None:
    found = tokenized(tokenizer, Text("once"), Manner())
    assert (found.ids.tolist(), found.prompt_length) == (tokenizer.encode("once"), 1)
    assert found.action_mask.tolist() == [1, 1, 1]


@pytest.mark.parametrize("text", ["", "o"])
def test_a_text_without_a_second_token_leaves_nothing_to_learn(tokenizer: Any, text: str) -> None:
    assert tokenized(tokenizer, Text(text), Manner()).action_mask.tolist() == []
