"""Sequences spread over ranks so that each has about as much to compute. Pure."""

from collections.abc import Sequence as Rows

_WORK_OF_A_TOKEN = 24_576


def workload(tokens: int) -> int:
    """What a sequence costs, up to a factor: a part by its tokens, and attention by their square.

    The weights are veRL's (`seqlen_balancing.calculate_workload`), of a model of 7B parameters.
    """
    return _WORK_OF_A_TOKEN * tokens + tokens**2


def spread(workloads: Rows[int], ranks: int) -> list[int]:
    """An order of the items of which each rank takes its equal share in a row, `len(workloads) / ranks` of them.

    The heaviest first, each goes to the rank that has least so far and room for it; on a rank they keep their order.
    """
    room = len(workloads) // ranks
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for item in sorted(range(len(workloads)), key=lambda item: (-workloads[item], item)):
        rank = min((rank for rank in range(ranks) if len(shares[rank]) < room), key=lambda rank: (loads[rank], rank))
        shares[rank].append(item)
        loads[rank] += workloads[item]
    return [item for share in shares for item in sorted(share)]
