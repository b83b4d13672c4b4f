"""Means and deviations of values within groups."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Statistics:
    """Of each value `B`: the mean, unbiased standard deviation and size of the group that it belongs to.

    A group of one has mean 0 and deviation 1, so that its value stands for itself.
    """

    mean: torch.Tensor
    std: torch.Tensor
    count: torch.Tensor


def statistics(values: torch.Tensor, groups: torch.Tensor) -> Statistics:
    """The statistics of `values` `B` within `groups` `B`, ints that are equal within a group."""
    _, index = torch.unique(groups, return_inverse=True)
    count = torch.bincount(index).to(values.dtype)
    mean = _summed(values, index, len(count)) / count
    squares = _summed((values - mean[index]).square(), index, len(count))
    std = (squares / (count - 1).clamp(min=1)).sqrt()
    is_alone = count == 1
    mean, std = mean.masked_fill(is_alone, 0), std.masked_fill(is_alone, 1)
    return Statistics(mean[index], std[index], count[index])


def deviation(values: torch.Tensor) -> torch.Tensor:
    """The unbiased standard deviation of `values` `B`; 1 where there are fewer than two."""
    return values.std() if len(values) > 1 else torch.ones((), dtype=values.dtype, device=values.device)


def _summed(values: torch.Tensor, index: torch.Tensor, size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=values.dtype, device=values.device).index_add_(0, index, values)
