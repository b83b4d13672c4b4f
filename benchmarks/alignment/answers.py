"""The batches that both sides are trained on: real answers of the model that training begins from, with rewards."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from schemas.experiences import Experience, GroupSampled
from schemas.tasks import TaskIdentity
from services.trainer.intake import Batch

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Answer:
    """One response with the prompt before it. `logprobs` are the sampling model's, at temperature 1."""

    prompt: Ids
    response: Ids
    logprobs: npt.NDArray[np.float32]
    reward: float


Round = list[list[Answer]]
"""The answers of one step, by prompt: `P x G`."""


def rounds(model_path: Path, steps: int, prompts: int, group: int, max_tokens: int, seed: int = 0) -> list[Round]:
    """The answers of all steps. Every step has prompts of its own.

    The reward is the share of a response's tokens whose ids are even, of which every model has some.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_path)
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()
    chance = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    made: list[Round] = []
    for _ in range(steps):
        sums = [tuple(chance.integers(1, 10 ** int(chance.integers(1, 4)), 2)) for _ in range(prompts)]
        encoded = [np.asarray(tokenizer.encode(f"{one}+{other}="), np.int32) for one, other in sums]
        made.append([_answered(model, each, group, max_tokens, generator) for each in encoded])
    return made


def _answered(model: Any, prompt: Ids, group: int, max_tokens: int, generator: torch.Generator) -> list[Answer]:
    """Responses of drawn lengths to one prompt, sampled at temperature 1."""
    tokens = torch.tensor(prompt[None].astype(np.int64)).repeat(group, 1)
    lengths = torch.randint(2, max_tokens + 1, (group,), generator=generator).tolist()
    with torch.no_grad():
        for _ in range(max(lengths)):
            chances = torch.softmax(model(tokens).logits[:, -1], dim=-1)
            tokens = torch.cat([tokens, torch.multinomial(chances, 1, generator=generator)], dim=1)
        logprobs = torch.log_softmax(model(tokens).logits[:, len(prompt) - 1 : -1], dim=-1)
    responses = tokens[:, len(prompt) :]
    of_responses = logprobs.gather(2, responses[:, :, None])[:, :, 0]
    return [
        _answer(prompt, response[:length].numpy(), of_response[:length].numpy())
        for response, of_response, length in zip(responses, of_responses, lengths, strict=True)
    ]


def _answer(prompt: Ids, response: Any, logprobs: Any) -> Answer:
    return Answer(prompt, response.astype(np.int32), logprobs, float((response % 2 == 0).mean()))


def batch(answers: Round) -> Batch:
    """The answers as our trainer takes them."""
    groups = []
    for ordinal, of_prompt in enumerate(answers):
        task = TaskIdentity(ordinal=ordinal, batch=0, taskset="sums", epoch=0, index=ordinal)
        experiences = tuple(_experience(position, answer) for position, answer in enumerate(of_prompt))
        groups.append(
            GroupSampled(run="a/b", task=task, repeat_times=len(of_prompt), explorer="e", experiences=experiences)
        )
    return Batch(groups=groups)


def data_proto(answers: Round) -> Any:
    """The answers as veRL's trainer has them after its rollout: prompts padded left, responses right."""
    from verl import DataProto

    flat = [answer for of_prompt in answers for answer in of_prompt]
    prompts, prompt_mask = _padded([answer.prompt[::-1] for answer in flat])
    prompts, prompt_mask = prompts.flip(1), prompt_mask.flip(1)
    responses, response_mask = _padded([answer.response for answer in flat])
    attention = torch.cat([prompt_mask, response_mask], dim=1)
    scores = torch.zeros(responses.shape)
    for row, answer in enumerate(flat):
        scores[row, len(answer.response) - 1] = answer.reward
    tensors = {
        "prompts": prompts,
        "responses": responses,
        "input_ids": torch.cat([prompts, responses], dim=1),
        "attention_mask": attention,
        "position_ids": (attention.cumsum(1) - 1).clamp(min=0),
        "response_mask": response_mask,
        "rollout_log_probs": _padded([answer.logprobs for answer in flat])[0],
        "token_level_scores": scores,
        "token_level_rewards": scores,
    }
    uids = [str(number) for number, of_prompt in enumerate(answers) for _ in of_prompt]
    made = DataProto.from_dict(tensors=tensors, non_tensors={"uid": np.array(uids, dtype=object)})
    made.meta_info = {"temperature": 1.0, "global_token_num": attention.sum(-1).tolist()}
    return made


def _experience(position: int, answer: Answer) -> Experience:
    return Experience(
        position=position,
        tokens=np.concatenate([answer.prompt, answer.response]),
        prompt_length=len(answer.prompt),
        action_mask=np.ones(len(answer.response), np.uint8),
        logprobs=answer.logprobs,
        token_versions=np.zeros(len(answer.response), np.int32),
        reward=answer.reward,
    )


def _padded(rows: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows filled up with zeros on the right, and where they are real."""
    tensors = [torch.tensor(np.ascontiguousarray(row)) for row in rows]
    wide = [tensor.to(torch.int64) if not tensor.is_floating_point() else tensor for tensor in tensors]
    filled = torch.nn.utils.rnn.pad_sequence(wide, batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])
    return filled, (torch.arange(filled.shape[1])[None] < lengths[:, None]).to(torch.int64)
