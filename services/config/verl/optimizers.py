"""The optimizers by the names of `algorithm.optimizer.optimizer_type`, as veRL finds them in `torch.optim`.

As in Trinity-RFT, `adam` is AdamW too. `trainer.trainer_config.actor_rollout_ref.actor.optim.optimizer` names others.
"""

OPTIMIZERS = {"adam": "AdamW", "adamw": "AdamW", "sgd": "SGD"}
