"""tables/layers.csv: gradients and FLOPs of each layer."""

import csv

import pytest
from refusals import command_error

from mxscale.cli import main
from mxscale.config.networks import NAMES
from mxscale.models import layer_table
from mxscale.util import csv_tables


def committed(name: str) -> list:
    return [row for row in csv_tables.read("layers") if row["network"] == name]


def of_network(name: str) -> list:
    return [{key: str(value) for key, value in layer._asdict().items()} for layer in layer_table.layers(name)]


@pytest.mark.parametrize("name", ["small", "mobilenet0.25", "resnet18_v1b", "squeezenet1.1"])
def test_table_matches_the_network(name):
    assert committed(name) == of_network(name)


@pytest.mark.slow
def test_table_has_every_network_of_the_zoo():
    assert csv_tables.read("layers") == [row for name in NAMES for row in of_network(name)]


# Parameters and multiply-adds of torchvision's networks (`num_params` and `_ops` of its weights)
@pytest.mark.parametrize(
    "name, parameters, giga",
    [
        ("resnet18_v1b", 11_689_512, 1.814),
        ("resnet50_v1b", 25_557_032, 4.089),
        ("resnet152_v1b", 60_192_808, 11.514),
        ("vgg16", 138_357_544, 15.470),
        ("alexnet", 61_100_840, 0.714),
        ("densenet121", 7_978_856, 2.834),
        ("inceptionv3", 23_834_568, 5.713),
    ],
)
def test_sums_match_published_ones(name, parameters, giga):
    rows = committed(name)
    assert sum(int(row["parameters"]) for row in rows) == parameters
    multiplied = sum(int(row["flops"]) for row in rows if row["kind"] != "batch_norm")
    assert multiplied / 2e9 == pytest.approx(giga, abs=0.0006)


def test_layer_computed_by_hand():
    """First layer of ResNet: 64 filters of 7x7x3 at 112x112 positions, 2 operations each; its norm has 1."""
    first, norm = committed("resnet50_v1b")[:2]
    assert (first["kind"], first["parameters"], first["output"]) == ("conv", str(64 * 147), "64x112x112")
    assert int(first["flops"]) == 2 * 64 * 147 * 112 * 112
    assert (norm["parameters"], int(norm["flops"])) == ("128", 2 * 64 * 112 * 112)


def test_untrained_scale_is_not_exchanged():
    """ResNet v2 normalises its input with fixed gamma 1 and beta 0."""
    assert committed("resnet50_v2")[0]["parameters"] == "0"


def test_the_table_of_one_network_has_its_layers_and_sums(capsys):
    assert main.main(["layers", "mnist_convnet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = committed("mnist_convnet")
    assert lines[0] == "mnist_convnet: images of 28 px, 10 classes"
    assert [line.split()[0] for line in lines[3:-3]] == [row["layer"] for row in rows]
    parameters, flops = (sum(int(row[key]) for row in rows) for key in ("parameters", "flops"))
    assert lines[-3].split() == ["total", "4", "layers", f"{parameters:,}", f"{flops:,}"]


def test_layers_are_those_of_the_given_size_and_classes():
    first, *_, last = layer_table.of_networks(["resnet50_v1b"], image_size=96, classes=5)
    assert (first.output, first.flops) == ("64x48x48", 2 * 64 * 147 * 48 * 48)
    assert (last.output, last.parameters) == ("5", 2048 * 5 + 5)


def test_several_networks_have_a_line_each(capsys):
    assert main.main(["layers", "small", "squeezenet1.1"]) == 0
    _, small, squeezenet, *_ = capsys.readouterr().out.splitlines()
    assert small.split()[:4] == ["small", "32", "10", str(len(committed("small")))]
    assert squeezenet.split()[4] == f"{sum(int(row['parameters']) for row in committed('squeezenet1.1')):,}"


def test_command_writes_the_table(tmp_path):
    made = tmp_path / "layers.csv"
    assert main.main(["layers", "networks=[small]", f"output={made}"]) == 0
    with open(made, newline="") as file:
        assert list(csv.DictReader(file)) == committed("small")


@pytest.mark.parametrize(
    "given, message",
    [
        (["output=x.csv", "networks=[resnet50v1b]"], "did you mean resnet50_v1b?"),
        (["output=x.csv", "networks=small"], "networks=small: expected a list"),
        (["smalls"], "networks: smalls: did you mean small?"),
        (["alexnet", "image_size=32"], "image_size=32: alexnet needs at least 63"),
        (["small", "image_size=32.5"], "image_size=32.5: expected a whole number"),
        (["small", "classes=1"], "classes=1: expected from 2 to 1000000"),
        (["networks=[small]", "output=no/such/folder/x.csv"], "No such file or directory"),
    ],
)
def test_invalid_setting_is_one_line(given, message, capsys):
    assert message in command_error(capsys, "layers", *given)
