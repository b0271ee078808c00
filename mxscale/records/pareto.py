"""The Pareto front of cost and accuracy."""

from typing import List, Sequence, Tuple


def front(points: Sequence[Tuple[float, float]]) -> List[int]:
    """Return the indices of the (cost, accuracy) pairs that no other pair dominates, in the order of cost.

    Of equal pairs only the first is returned.
    """
    order = sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1]))
    best, chosen = float("-inf"), []
    for i in order:
        if points[i][1] > best:
            best = points[i][1]
            chosen.append(i)
    return chosen
