"""Fine-tuning on a folder of photographs: pretrained against random weights, all layers against the classifier.

    python bench/finetune.py --photographs DIR [--quick]

DIR has a folder of images for each class, such as Dataset of ardamavi/Sign-Language-Digits-Dataset. Each variant runs
`mxscale finetune data=imagefolder data.root=DIR model=efficientnet_lite0 model.pretrained=imagenet` with its settings
and the seeds 1, 2, ..., in turn; a seed chooses the new head's weights and the order, the split is the same. The same
command continues: finished runs in `--runs` count, so other photographs need another folder. Prints test top-1, minutes
and USD of each variant, and draws the validation accuracy over the epochs.
"""

import sys
from pathlib import Path

import measure

from mxscale.rundir.directory import RunDir
from mxscale.rundir.status import FINISHED

PRICE = 0.34  # USD per hour: c5.2xlarge (4 cores, 16 GB; two ranks need 14 GB), us-east-1, on demand
COMMON = ("data=imagefolder", "model=efficientnet_lite0", "epochs=8", "data.val_share=0.2", "data.test_share=0.2",
          f"machine.usd_per_hour={PRICE}")  # fmt: skip
PRETRAINED = ("model.pretrained=imagenet",)
FEW = ("data.train_per_class=10", "epochs=40", "batch.per_device=10", "validate_every=10")
HEAD = ("model.freeze=features",)
ALL, TEN = "all labels", "10 labels per class"
# (labels, what is trained) -> settings
VARIANTS = {
    (ALL, "all layers"): PRETRAINED,
    (ALL, "classifier only"): (*PRETRAINED, *HEAD),
    (TEN, "all layers"): (*PRETRAINED, *FEW),
    (TEN, "classifier only"): (*PRETRAINED, *FEW, *HEAD),
    (ALL, "random weights"): ("model.pretrained=null",),
}
# metric -> unit of the table in that of the metric, form
METRICS = {"test/top1": (1, "{:.2f} %"), "time/wall_s": (60, "{:.1f} min"), "cost/total_usd": (1, "{:.3f} USD")}


def finished(runs: Path, name: str):
    """Return the newest finished run of a name; None without one."""
    found = [RunDir(path) for path in sorted(runs.glob(f"finetune/*_{name}"))]
    return next((run for run in reversed(found) if (run.read("status.json") or {}).get("state") == FINISHED), None)


def trained(runs: Path, photographs: str, name: str, settings) -> RunDir:
    """Return the finished run of a name, trained now if there is none."""
    place = (f"data.root={photographs}", f"name={name}", f"runs={runs}")
    return finished(runs, name) or measure.train(*COMMON, *settings, *place, entry="finetune")["run"]


def spread_of(runs, metric: str) -> dict:
    unit, _ = METRICS[metric]
    return measure.spread([run.read("summary.json")["metrics"][metric] / unit for run in runs])


def draw(runs: dict, file: Path) -> None:
    """Draw the validation accuracy over the epochs, a panel for each number of labels."""
    import matplotlib

    from mxscale.records import learning_curves
    from mxscale.rendering import canvas

    colours = dict(zip(dict.fromkeys(part for _, part in VARIANTS), canvas.COLOURS))
    with matplotlib.rc_context(canvas.STYLE):
        figure, panels = canvas.axes(9.0, 3.6, 2)
        for on, labels in zip(panels, (ALL, TEN)):
            for (of, part), some in runs.items():
                for run in some if of == labels else ():
                    epochs, top1 = learning_curves.points(run.history(), "val/top1", run.plan().sizes.steps_per_epoch)
                    label = part if run is some[0] else None
                    on.plot(epochs, top1, "o-", ms=3.5, color=colours[part], lw=1.5, label=label)
            on.set_title(labels, fontsize=10)
            on.set_xlabel("epoch")
            on.grid()
            on.legend(fontsize=9)
        panels[0].set_ylabel("validation top-1, %")
        file.write_bytes(canvas.as_png(figure, learning_curves.DPI))


def main() -> None:
    options = measure.arguments(
        __doc__.splitlines()[0],
        photographs=("", "folder of images by class; required"),
        runs=("runs/bench-finetune", "folder of the runs"),
        seeds=(5, "seeds of each variant"),
        variants=(len(VARIANTS), "run the first variants only"),
        figure=("", "file of the learning curves; without it none"),
    )
    if not options.photographs:
        sys.exit("--photographs=DIR is required")
    chosen = list(VARIANTS.items())[: options.variants]
    runs, folder = {name: [] for name, _ in chosen}, measure.ROOT / options.runs
    for seed in range(1, 2 if options.quick else options.seeds + 1):
        for number, (name, settings) in enumerate(chosen):
            settings = (*settings, f"seed={seed}", *(("max_steps=4",) if options.quick else ()))
            of_run = f"{'quick-' * options.quick}variant{number}-seed{seed}"
            runs[name].append(trained(folder, options.photographs, of_run, settings))
    figures = {", ".join(name): {metric: spread_of(some, metric) for metric in METRICS} for name, some in runs.items()}
    for name, values in figures.items():
        texts = [measure.show(values[metric], form) for metric, (_, form) in METRICS.items()]
        print(f"{name:32} {texts[0]:34} {texts[1]:30} {texts[2]}")
    if options.figure:
        draw(runs, Path(options.figure))
    measure.finish(figures)


if __name__ == "__main__":
    main()
