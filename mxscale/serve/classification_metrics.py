"""Metrics of a classifier over a labelled set: accuracy, loss, per class, confusions, calibration."""

from typing import Dict, List, NamedTuple, Tuple

import numpy as np

BINS = 15  # of the calibration error, as in arXiv:1706.04599, sec. 4


class ClassMetrics(NamedTuple):
    """Metrics of one class, 0 to 1; NaN where they are undefined (no image, or never predicted)."""

    precision: float
    recall: float
    f1: float
    support: int  # images of the class


class Bin(NamedTuple):
    """Images whose most likely class has a probability within a range."""

    confidence: float  # mean probability
    accuracy: float  # share of correct ones
    count: int


class Tally:
    """Counts over batches: integers, so that no order of batches changes them; the loss is summed in float64."""

    def __init__(self, classes: int):
        self.confusion = np.zeros((classes, classes), "int64")  # images by class (row) and predicted class (column)
        self.loss_sum, self.top5_count = 0.0, 0
        self.confidence_sums, self.bin_correct, self.bin_counts = np.zeros(BINS), np.zeros(BINS), np.zeros(BINS, int)

    @property
    def images(self) -> int:
        return int(self.confusion.sum())

    def add(self, log_probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Count a batch: (n, classes) float64, (n,) integers. Returns the predicted classes (n,)."""
        ranked = np.argsort(-log_probabilities, axis=1, kind="stable")[:, :5]
        predicted, rows = ranked[:, 0], np.arange(len(labels))
        np.add.at(self.confusion, (labels, predicted), 1)
        self.top5_count += int((ranked == labels[:, None]).sum())
        self.loss_sum -= float(log_probabilities[rows, labels].sum())
        confidence = np.exp(log_probabilities[rows, predicted])
        places = np.minimum((confidence * BINS).astype(int), BINS - 1)
        np.add.at(self.confidence_sums, places, confidence)
        np.add.at(self.bin_correct, places, predicted == labels)
        np.add.at(self.bin_counts, places, 1)
        return predicted

    def metrics(self) -> Dict[str, float]:
        """Return top1 and top5 in percent, loss in nats, ece and macro averages in 0-1; top5 with over 5 classes."""
        found = {"top1": 100 * np.trace(self.confusion) / self.images, "loss": self.loss_sum / self.images}
        if len(self.confusion) > 5:
            found["top5"] = 100 * self.top5_count / self.images
        by_class = np.array([one[:3] for one in self.by_class() if one.support])
        macro = dict(zip(("precision", "recall", "f1"), np.nan_to_num(by_class).mean(axis=0).tolist()))
        return {**{name: float(value) for name, value in found.items()}, "ece": self.calibration_error(), **macro}

    def by_class(self) -> List[ClassMetrics]:
        """Return the metrics of each class."""
        correct = np.diag(self.confusion).astype(float)
        support, predicted = self.confusion.sum(axis=1), self.confusion.sum(axis=0)
        with np.errstate(invalid="ignore", divide="ignore"):
            precision, recall = correct / predicted, correct / support
            f1 = 2 * correct / (support + predicted)
        return [ClassMetrics(*map(float, row[:3]), int(row[3])) for row in zip(precision, recall, f1, support)]

    def calibration_error(self) -> float:
        """Return the expected calibration error, 0 to 1 (arXiv:1706.04599, eq. 3)."""
        return sum(one.count * abs(one.confidence - one.accuracy) for one in self.bins()) / self.images

    def bins(self) -> List[Bin]:
        """Return the bins of confidence that hold images."""
        return [
            Bin(float(confidence / count), float(correct / count), int(count))
            for confidence, correct, count in zip(self.confidence_sums, self.bin_correct, self.bin_counts)
            if count
        ]

    def most_confused(self, most: int = 20) -> List[Tuple[int, int, int]]:
        """Return the most frequent errors as (class, predicted class, images), the most frequent one first."""
        errors = self.confusion.copy()
        np.fill_diagonal(errors, 0)
        order = np.argsort(-errors, axis=None, kind="stable")[: min(most, np.count_nonzero(errors))]
        labels, predicted = np.unravel_index(order, errors.shape)
        return list(zip(labels.tolist(), predicted.tolist(), errors[labels, predicted].tolist()))
