"""A conversation as the text that a model reads: laid out by its chat template."""

from collections.abc import Mapping, Sequence
from typing import Any

from services.inference.engine import Tokenizer

Messages = Sequence[Mapping[str, str]]


def laid_out(
    tokenizer: Tokenizer,
    messages: Messages,
    *,
    chat_template: str | None = None,
    enable_thinking: bool | None = None,
    add_generation_prompt: bool = True,
) -> str:
    """The prompt. A last message of the assistant is continued. What is None is left to the tokenizer.

    The special tokens are in the text: encode it with `add_special_tokens=False`.
    """
    is_begun = messages[-1]["role"] == "assistant"
    options: dict[str, Any] = {
        "tokenize": False,
        "add_generation_prompt": add_generation_prompt and not is_begun,
        "continue_final_message": is_begun,
        "chat_template": chat_template,
        "enable_thinking": enable_thinking,
    }
    set_options = {name: value for name, value in options.items() if value is not None}
    return str(tokenizer.apply_chat_template([dict(message) for message in messages], **set_options))
