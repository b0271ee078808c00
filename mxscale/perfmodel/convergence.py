"""Epochs to an accuracy by global batch, from MLPerf's reference convergence points: tables/convergence.csv."""

from typing import NamedTuple, Tuple

import numpy as np

from mxscale.util import csv_tables
from mxscale.util.errors import ConfigError


class Convergence(NamedTuple):
    """The epochs of one network to one accuracy."""

    batches: Tuple[float, ...]  # global ones, ascending
    epochs: Tuple[float, ...]  # at these batches

    def at(self, global_batch: np.ndarray) -> np.ndarray:
        """Return the epochs, interpolated in the logarithm of the batch; NaN above the largest batch.

        Below the smallest they are those of the smallest: fewer are not on record.
        """
        return np.interp(np.log(global_batch), np.log(self.batches), self.epochs, right=np.nan)


def of(network: str, data: str, top1: float) -> Tuple[Convergence, str]:
    """Return the epochs to a validation top-1 in percent, and a description. Raises ConfigError if unknown."""
    table = csv_tables.read("convergence")
    rows = [row for row in table if (row["network"], row["data"], float(row["top1"])) == (network, data, top1)]
    if not rows:
        known = dict.fromkeys(f"{row['top1']} with model={row['network']} data={row['data']}" for row in table)
        wanted = f"plan.target={top1:g} with model={network} data={data}"
        raise ConfigError(f"{wanted}: epochs are known for {', '.join(known)}; give plan.epochs")
    found = Convergence(*zip(*((float(row["global_batch"]), float(row["epochs"])) for row in rows)))
    ends = (f"{found.epochs[end]:.3g} at a global batch of {found.batches[end]:,.0f}" for end in (0, -1))
    return found, f"to {top1:g} % top-1 with {rows[0]['optimizer']}: {' to '.join(ends)} (MLPerf's reference points)"
