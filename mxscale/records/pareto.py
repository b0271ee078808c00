"""The Pareto front of cost and accuracy."""

from typing import List, Sequence, Tuple


def front(points: Sequence[Tuple[float, float]]) -> List[int]:
    """Return the indices of the (cost, accuracy) pairs that no other pair dominates, by cost; one of equal pairs."""
    order = sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1]))
    best, found = float("-inf"), []
    for i in order:
        if points[i][1] > best:
            best = points[i][1]
            found.append(i)
    return found
