"""`mxscale evaluate`: accuracy, confusions, calibration and errors of a trained network on a labelled split."""

import dataclasses
from pathlib import Path
from typing import Collection, Iterator, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from mxscale.config.datasets import DATASETS
from mxscale.config.schema import Config, Data
from mxscale.config.verb_settings import Evaluate
from mxscale.data import manifest as manifests
from mxscale.data import pack, sources
from mxscale.data.central_crop import CentralCrop
from mxscale.data.images import BadImage
from mxscale.data.reader import decoder
from mxscale.data.reader.records import RecordFile
from mxscale.data.recordio import BadRecords
from mxscale.data.workers import Progress
from mxscale.models.model_card import ModelCard
from mxscale.rendering import page
from mxscale.rundir.directory import RunDir
from mxscale.serve import evaluation_report, export, trained_models
from mxscale.serve.classification_metrics import Tally
from mxscale.serve.evaluation_report import Evaluated, Mistake
from mxscale.serve.predictor import Predictor
from mxscale.tracking import history
from mxscale.util.errors import ConfigError, nearest

ALL = "all"  # the images of a set without splits
SPLITS = ("test", "val", "train", ALL)  # the first that a set has is the default
PLACES = ("root", "train", "val", "test", "cache")  # settings of data that do not change the images
WORST = 60  # errors that a page shows
IN_TRAINING = {"test": "test/top1", "val": "best/val_top1"}  # split -> metric of a run


class Images(NamedTuple):
    """A labelled split, with the network's class of each label."""

    name: str  # of the split
    records: RecordFile
    classes: np.ndarray  # label -> number of the network's class
    files: Sequence[str] = ()  # of which the records were packed; none: the records are evaluated

    def name_of(self, record: int) -> str:
        return self.files[record] if self.files else self.records.name_of(record)

    def read(self, record: int, crop: CentralCrop) -> Tuple[int, np.ndarray]:
        """Return the network's class of an image, and its input. Raises ConfigError."""
        try:
            label, content = self.records[record]
            pixels = crop.of_file(self.files[record]) if self.files else crop(decoder.decode(content))
            return self.classes[int(label)], pixels
        except (OSError, BadRecords, BadImage) as error:
            raise ConfigError(f"{self.name_of(record)}: {error}") from None


def main(config: Config, typed: Collection[str], request: Evaluate) -> None:
    """Evaluate, write the report, record it in the run of the model. Raises ConfigError.

    Args:
        typed: The keys on the command line. `data` names another set; PLACES alone say where that of the run is.
    """
    page.check_installed("mxscale evaluate")
    run, another_set = trained_models.find_run(request.source, config), not {"data", "data.kind"}.isdisjoint(typed)
    if run is None and not another_set:
        raise ConfigError(f"{request.source} names no data: add data=NAME, such as data=imagefolder data.root=DIR")
    trained_on = None if another_set else run  # the run whose data are evaluated
    recorded = trained_on and config.tracking.enabled and trained_models.mlflow_id(run)
    store = history.Store(config, "evaluate", run) if recorded else None
    run_id = store and store.id_of(run)  # before the work, as the folder: without them it would be lost
    images = trained_on and of_run(run, config.data, typed, request.split)
    exported = export.exported(run or request.source, config)
    images = images or labelled(config, exported.card, request.split)
    name = f"evaluation/{images.name}"  # folder of the files in the run, and prefix of the metrics in MLflow
    folder = Path(request.output or (run.path / name if trained_on else name))
    page.prepare(folder)
    evaluated = evaluate(Predictor(exported), images)
    if trained_on and images.files:
        evaluated = evaluated._replace(in_training=run.figures.get(IN_TRAINING.get(images.name)))
    files = evaluation_report.write(evaluated, folder)
    if store:
        store.keep(files, run_id, name)
        store.log_metrics(run_id, {f"{name}/{metric}": value for metric, value in evaluated.tally.metrics().items()})


def of_run(run: RunDir, settings: Data, typed: Collection[str], split: Optional[str]) -> Images:
    """Return a split of the data that a run was trained with; they are packed again if the packed ones are gone.

    Args:
        settings: Those of data, of which the `typed` ones of PLACES replace the run's.

    Raises:
        ConfigError: The images have changed (another split could hold images that the run was trained on), or a typed
            setting has no effect.
    """
    plan = run.plan()
    if plan.data_dir is None:
        raise ConfigError(f"{run}: its images were generated; name others with data=NAME")
    places = sorted(key.partition(".")[2] for key in typed if key.startswith("data."))
    for name in places:
        if name not in PLACES:
            raise ConfigError(f"data.{name}: {run} is evaluated with its own settings; omit it, or add data=NAME")
    data = dataclasses.replace(run.config().data, **{name: getattr(settings, name) for name in places})
    packed = (None if set(places) - {"cache"} else manifests.intact(plan.data_dir)) or pack.prepare(data)
    if plan.data_digest not in (None, packed["digest"]):
        raise ConfigError(f"{run}: its images have changed since the training; name others with data=NAME")
    chosen = _chosen(split, list(plan.splits), str(run))
    return _opened(chosen, data, packed, np.arange(plan.classes))


def labelled(config: Config, card: ModelCard, split: Optional[str]) -> Images:
    """Return a split of the set that `config.data` names, packed if it is not. Raises ConfigError."""
    if DATASETS[config.data.kind].generated:
        raise ConfigError(f"data={config.data.kind} has no labels to evaluate")
    data = dataclasses.replace(config.data, image_size=card.image_size, allow_duplicates=True)
    # Packing must not enlarge images beyond the size whose centre is cropped; None: that of the image as it is
    side = max(card.resize, card.image_size) if data.short_side and card.resize else "original"
    data = dataclasses.replace(data, pack_short_side=side, test_share=1 if split == ALL else data.test_share)
    packed = pack.prepare(data)
    where = f"data={data.kind}" + ("" if data.root is None else f" data.root={data.root}")
    present = [name for name, entry in packed["splits"].items() if entry["count"]]
    chosen = _chosen(split, present, where)
    return _opened(chosen, data, packed, _matched(packed["classes"], card, where))


def _chosen(split: Optional[str], present: Sequence[str], where: str) -> str:
    if split is None:
        return next(name for name in SPLITS if name in present)
    if split not in present:
        raise ConfigError(f"split={split}: {where} has only {', '.join(present)}")
    return split


def _matched(names: Sequence[str], card: ModelCard, where: str) -> np.ndarray:
    """Return the network's class of each class of a set, by name. Raises ConfigError."""
    numbers = {name: number for number, name in enumerate(card.class_names)}
    unknown = [name for name in names if name not in numbers]
    if unknown:
        known = ", ".join(card.class_names[:5]) + (", ..." if len(card.class_names) > 5 else "")
        raise ConfigError(
            f"{where}: the network has no class {unknown[0]}{nearest(unknown[0], card.class_names)} "
            f"({len(unknown)} of the {len(names)} classes are unknown to it); its {len(card.class_names)} are {known}"
        )
    return np.array([numbers[name] for name in names])


def _opened(name: str, data: Data, packed: dict, classes: np.ndarray) -> Images:
    split, files = manifests.split_of(packed, name), sources.originals(data, packed)
    try:
        records = RecordFile(split)
        return Images(name, records, classes, [files[number] for number in records.ids()] if files else ())
    except (OSError, BadRecords) as error:
        raise ConfigError(f"{split.rec} cannot be read ({error})") from None


def evaluate(predictor: Predictor, images: Images) -> Evaluated:
    """Evaluate every image of a split once."""
    card, tally = predictor.card, Tally(len(predictor.card.class_names))
    mistakes = sorted(_mistakes(predictor, images, tally), key=lambda one: (-one.confidence, one.record))
    # Read again, because the pixels of all could fill the memory
    worst = [(mistake, images.read(mistake.record, predictor.crop)[1]) for mistake in mistakes[:WORST]]
    return Evaluated(card, images.name, "images" if images.files else "packed images", tally, mistakes, worst)


def _mistakes(predictor: Predictor, images: Images, tally: Tally) -> Iterator[Mistake]:
    """Predict every image, count it in `tally`, and yield the wrong predictions."""
    labels = np.empty(len(images.records), int)

    def pixels(record: int) -> np.ndarray:
        labels[record], seen = images.read(record, predictor.crop)
        return seen

    with Progress(f"evaluating {images.name}", len(labels), " images") as bar:
        for batch in predictor.predict(range(len(labels)), pixels):
            bar.add(len(batch.items))
            if not np.isfinite(batch.logits).all():
                name = images.name_of(batch.items[0])
                raise ConfigError(f"the network's scores are not finite, first in the batch from {name} on")
            log_probabilities = log_softmax(batch.logits)
            predicted = tally.add(log_probabilities, labels[batch.items])
            for place in np.flatnonzero(predicted != labels[batch.items]):
                record, confidence = batch.items[place], float(np.exp(log_probabilities[place, predicted[place]]))
                name = images.name_of(record)
                yield Mistake(confidence, record, name, labels[record], predicted[place])


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return the logarithms of the probabilities in float64, (n, classes)."""
    logits = logits.astype("float64")
    logits -= logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
