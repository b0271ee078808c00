"""Images/s with MLflow tracking over without, on the default job: pairs of runs in turn.

python bench/mirror.py [--quick]
"""

import measure


def main() -> None:
    options = measure.arguments(__doc__.splitlines()[0], pairs=(9, "pairs of runs"))
    epochs = 10 if options.quick else 25

    def rate(tracking: str):
        run = measure.train(f"tracking={tracking}", f"epochs={epochs}", "name=mirror")
        return run["summary"]["throughput/median"]

    with_mlflow, without = measure.in_turn(
        lambda: rate("mlflow"), lambda: rate("none"), turns=1 if options.quick else options.pairs
    )
    figures = {
        "ratio": measure.spread([a / b for a, b in zip(with_mlflow, without)]),
        "mlflow": measure.spread(with_mlflow),
        "none": measure.spread(without),
    }
    print(f"tracked by MLflow  {measure.show(figures['mlflow'], '{:.1f}')} images/s")
    print(f"not tracked        {measure.show(figures['none'], '{:.1f}')} images/s")
    print(f"ratio              {measure.show(figures['ratio'])}")
    measure.finish(figures)


if __name__ == "__main__":
    main()
