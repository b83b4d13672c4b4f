"""How hard each row of a taskset is for the policy of now, and which rows to ask next. Pure.

The pass rate of a row has a Beta posterior that forgets: with the successes `s` and failures `f` of `m` tries,

    alpha <- (1 - lamb) alpha + lamb + (1 - rho) s + rho m p
    beta  <- (1 - lamb) beta  + lamb + (1 - rho) f + rho m (1 - p)

where `p` is what the other rows say of this one, and of a row that was tried its own pass rate (BOTS: Bayesian online
task selection in reinforcement fine-tuning). Of rows with the pass rates of a weaker and a stronger model as features,
`p` lies between the two, as far along as the policy was on the rows that were tried.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Reals = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

_CAPABILITY_KEPT = 0.9
_WRONG_BY = 0.25
_TINY = 1e-6


@dataclass(frozen=True)
class Difficulty:
    """Posteriors of the pass rates of `N` rows. `features` are `N x 2`, the pass rates of a weaker and a stronger
    model, or None; `capability` is how far between the two the policy is, None until a row was tried."""

    alphas: Reals
    betas: Reals
    features: Reals | None = None
    m: int = 16
    lamb: float = 0.2
    rho: float = 0.2
    adaptive_rho: bool = False
    capability: float | None = None

    def learned(self, rows: Sequence[int], pass_rates: Sequence[float]) -> "Difficulty":
        """After these rows, each named once, were tried, with pass rates from 0 to 1."""
        tried, rates = np.asarray(rows, np.int64), np.asarray(pass_rates, np.float64)
        if len(tried) == 0:
            return self
        capability, guessed = self._guessed(tried, rates)
        rho = self.rho
        if self.adaptive_rho and guessed is not None and np.abs(guessed[tried] - rates).mean() >= _WRONG_BY:
            rho = 0.5 * rho
        successes, failures = self._evidence(guessed, rho)
        successes[tried], failures[tried] = self.m * rates, self.m * (1 - rates)
        return Difficulty(
            alphas=(1 - self.lamb) * self.alphas + self.lamb + successes,
            betas=(1 - self.lamb) * self.betas + self.lamb + failures,
            features=self.features,
            m=self.m,
            lamb=self.lamb,
            rho=rho,
            adaptive_rho=self.adaptive_rho,
            capability=capability,
        )

    def expected(self, chance: np.random.Generator | None = None) -> Reals:
        """The pass rate of each row: its posterior mean, or with `chance` a draw from its posterior."""
        if chance is not None:
            return chance.beta(self.alphas, self.betas)
        return self.alphas / (self.alphas + self.betas)

    def _guessed(self, tried: Indices, rates: Reals) -> tuple[float | None, Reals | None]:
        """The capability after these tries, and by it the pass rate of each row."""
        if self.features is None:
            return None, None
        weaker, stronger = self.features[tried].mean(axis=0)
        seen = float((rates.mean() - weaker) / (stronger - weaker + _TINY))
        capability = seen
        if self.capability is not None:
            capability = _CAPABILITY_KEPT * self.capability + (1 - _CAPABILITY_KEPT) * seen
        between = self.features[:, 0] + (self.features[:, 1] - self.features[:, 0]) * capability
        return capability, np.clip(between, 0.0, 1.0)

    def _evidence(self, guessed: Reals | None, rho: float) -> tuple[Reals, Reals]:
        """Successes and failures of rows that were not tried: what the guess is worth, or nothing."""
        if guessed is None:
            return np.zeros(len(self.alphas)), np.zeros(len(self.alphas))
        return rho * self.m * guessed, rho * self.m * (1 - guessed)


def unknown(rows: int, features: Reals | None, arguments: dict[str, Any]) -> Difficulty:
    """Of `rows` rows nothing is known: each pass rate is as likely as any other."""
    return Difficulty(
        alphas=np.ones(rows),
        betas=np.ones(rows),
        features=features,
        m=arguments["m"],
        lamb=arguments["lamb"],
        rho=arguments["rho"],
        adaptive_rho=arguments["adaptive_rho"],
    )


def chosen(pass_rates: Reals, number: int, target: float, tau: float, chance: np.random.Generator) -> Indices:
    """`number` rows, those with pass rates near `target` first: by rank where `tau` is 0, else drawn without
    replacement by `softmax(-|target - p| / tau)`. More than all rows come in rounds."""
    scores = -np.abs(target - pass_rates)
    rounds = []
    for first in range(0, number, len(scores)):
        keys = scores if tau == 0 else scores / tau + chance.gumbel(size=len(scores))  # Gumbel-top-k
        rounds.append(np.argsort(-keys, kind="stable")[: number - first])
    return np.concatenate(rounds)
