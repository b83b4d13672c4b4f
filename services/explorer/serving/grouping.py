"""From the judged messages of one group to experiences. Pure."""

from collections.abc import Sequence

from schemas.experiences import Experience
from services.explorer.serving.history import Message
from services.rollout.recording import chains, experience_of


def experiences_of(messages: Sequence[Message]) -> tuple[Experience, ...]:
    """One experience for each conversation of each run: positions count runs in the order of their first message.

    Messages that go on from each other are one experience, with the reward of the last. Of a conversation only what was
    judged is learned from: other responses are part of its prompt.
    """
    rewards = {(message.call.request_id, message.call.choice): message.reward for message in messages}
    runs = list(dict.fromkeys(message.run_id for message in messages))
    found: list[Experience] = []
    for position, run in enumerate(runs):
        calls = [message.call for message in messages if message.run_id == run]
        for step, chain in enumerate(chains(calls)):
            reward = rewards[chain[-1].request_id, chain[-1].choice]
            found.append(experience_of(chain, position, reward, step=step))
    return tuple(found)
