"""Settings of verbs that use a trained network, and of `layers`."""

from dataclasses import dataclass
from typing import List, Optional

from mxscale.config.operation_settings import REGISTERED
from mxscale.config.setting import setting
from mxscale.config.training_settings import MAX_PIXELS
from mxscale.config.verbs.common import file_name

MODEL = "run directory, latest, run:ID, exported .onnx file, or weights as in model.pretrained (with model=NAME)"


@dataclass(frozen=True)
class Predict:
    source: Optional[str] = setting(None, MODEL, required="mxscale predict MODEL IMAGES, such as latest photos/")
    images: Optional[List[str]] = setting(
        [],
        "files and folders of images",
        required="mxscale predict MODEL IMAGES, such as latest photos/",
    )
    top: int = setting(5, "classes for each image", low=1)
    output: Optional[str] = file_name("file of predictions; null: lines in the terminal", ".csv")
    sheet: Optional[str] = file_name("file with a picture of each image beside its predictions", ".html")


@dataclass(frozen=True)
class Evaluate:
    source: Optional[str] = setting(None, MODEL, required="mxscale evaluate MODEL, such as latest")
    split: Optional[str] = setting(
        None,
        "split to evaluate; null: test, or val in a set without one; all: every image of a set without splits",
        choices=("train", "val", "test", "all"),
    )
    output: Optional[str] = setting(
        None, "folder for page, tables and figures; null: evaluation/SPLIT in the run directory"
    )


@dataclass(frozen=True)
class Export:
    source: Optional[str] = setting(
        None,
        "run directory, latest, run:ID, or weights as in model.pretrained (with model=NAME)",
        required="mxscale export MODEL, such as latest",
    )
    format: str = setting(
        "onnx",
        "onnx: with normalisation, for cropped images; symbol: MXNet's PREFIX-symbol.json and PREFIX-0000.params; "
        "safetensors: weights, of resnet*_v1b by PyTorch's names",
        choices=("onnx", "symbol", "safetensors"),
    )
    output: Optional[str] = setting(
        None,
        "file, or prefix of symbol; null: model.onnx, model or model.safetensors in the run directory",
        pattern="(?s).*[^/]",
        form="the name of a file",
    )


@dataclass(frozen=True)
class Register:
    source: Optional[str] = setting(
        None, "run directory, latest or run:ID", required="mxscale register RUN NAME, such as latest flowers"
    )
    registered: Optional[str] = setting(
        None,
        "name of the registered model, whose alias champion moves to this version if its val top-1 is higher; "
        "null: log only",
        pattern=REGISTERED,
        form="a name without / and :, such as flowers",
    )


@dataclass(frozen=True)
class Layers:
    networks: List[str] = setting([], "names of networks; none: all")
    image_size: Optional[int] = setting(
        None,
        "height and width of the input; null: 224, or what the network was designed for",
        unit="pixels",
        low=1,
        high=MAX_PIXELS,
    )
    classes: Optional[int] = setting(
        None, "number of classes; null: 1000, or 10 for networks for small images", low=2, high=10**6
    )
    output: Optional[str] = setting(None, "CSV file; null: a table in the terminal")
