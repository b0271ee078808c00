"""Digits 5-9 from a few labels per class: fine-tuned from the network of digits 0-4, or from scratch.

    python bench/few_labels.py [--quick]

Both use the same labels and the same number of steps. Test top-1 in percent over five seeds, which choose the labels,
the initial weights of the new head (or network) and the order.
"""

import measure

STEPS = 300  # of 5 images each, for any number of labels


def main() -> None:
    options = measure.arguments(__doc__.splitlines()[0], seeds=(5, "seeds"))
    seeds = range(1, 2 if options.quick else options.seeds + 1)
    labels = (2, 10) if options.quick else (1, 2, 5, 10)
    origin = measure.train("name=origin", "tracking=none")["run"]
    figures = {}
    print("labels per class   fine-tuned                     from scratch                   gap (points)")
    for per_class in labels:
        rows = {"finetuned": [], "scratch": []}
        for seed in seeds:
            common = [f"seed={seed}", f"data.split_seed={seed}", f"data.train_per_class={per_class}", "launch.ranks=1",
                      f"epochs={STEPS // per_class}", "validate_every=1000", "name=few", "tracking=none"]  # fmt: skip
            tuned = measure.train(*common, f"model.pretrained={origin}", entry="finetune")
            fresh = measure.train(*common, "model.name=small", "model.pretrained=null", entry="finetune")
            rows["finetuned"].append(tuned["summary"]["test/top1"])
            rows["scratch"].append(fresh["summary"]["test/top1"])
        gap = [a - b for a, b in zip(rows["finetuned"], rows["scratch"])]
        figures[str(per_class)] = {name: measure.spread(values) for name, values in {**rows, "gap": gap}.items()}
        texts = [measure.show(value, "{:.1f}") for value in figures[str(per_class)].values()]
        print(f"{per_class:<18} {texts[0]:30} {texts[1]:30} {texts[2]}", flush=True)
    measure.finish(figures)


if __name__ == "__main__":
    main()
