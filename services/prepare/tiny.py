"""A Llama of a hundred thousand random parameters, whose tokens are bytes: small enough for every test."""

from pathlib import Path
from typing import Any

import structlog

from services.prepare.directory import make_once

log = structlog.get_logger(__name__)

RECIPE = "tiny-llama float32 1"
SEED = 0
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def prepare_tiny(into: Path) -> None:
    """Make `into/model`, the same bits each time: two layers, hidden size 64, tied embeddings, float32."""
    made = make_once(into / "model", RECIPE, _make)
    log.info("model_made" if made else "model_present", path=str(into / "model"))


def _make(directory: Path) -> None:
    import torch
    from transformers import LlamaForCausalLM

    tokenizer = _tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = LlamaForCausalLM(_config(len(tokenizer), tokenizer.eos_token_id))
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _config(vocab_size: int, eos_token_id: int) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,  # the smallest that vLLM's attention for the CPU knows
        max_position_embeddings=2048,
        initializer_range=0.1,  # wide enough that the distributions are not all but uniform
        tie_word_embeddings=True,
        bos_token_id=eos_token_id,
        eos_token_id=eos_token_id,
        pad_token_id=eos_token_id,
        dtype="float32",
    )


def _tokenizer() -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    end_of_text, _, end_of_turn = SPECIAL_TOKENS
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=end_of_text,
        eos_token=end_of_turn,
        pad_token=end_of_turn,
        unk_token=end_of_text,
        chat_template=CHAT_TEMPLATE,
        model_max_length=2048,
    )
