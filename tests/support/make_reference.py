"""Write tests/fixtures/reference/: results of PyTorch, for tests that run without it.

python tests/support/make_reference.py, with requirements/reference.lock installed.
"""

import json
import warnings
from collections import OrderedDict

import torch
from repository import ROOT
from torch_resnet import loaded
from torch_state import LAYOUTS, images, state

FOLDER = ROOT / "tests" / "fixtures" / "reference"
IMAGES, SIDE = 3, 64


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    scores = {}
    for layers in LAYOUTS:
        with torch.no_grad():
            scores[layers] = loaded(layers, state(layers))(torch.from_numpy(images(IMAGES, SIDE))).tolist()
    made_by = {"torch": torch.__version__, "images": IMAGES, "side": SIDE}
    (FOLDER / "logits.json").write_text(json.dumps({**made_by, "logits": scores}) + "\n")
    tensors = tensors_of_all_kinds()
    torch.save(tensors, FOLDER / "kinds.pth")
    torch.save(tensors, FOLDER / "kinds_legacy.pth", _use_new_zipfile_serialization=False)
    torch.save(tensors, FOLDER / "kinds_protocol4.pth", pickle_protocol=4)
    torch.save({"epoch": 3, "state_dict": tensors}, FOLDER / "kinds_nested.pth")
    torch.save(torch.nn.Linear(2, 1), FOLDER / "module.pth")
    (FOLDER / "kinds.json").write_text(json.dumps({n: t.tolist() for n, t in tensors.items()}) + "\n")


def tensors_of_all_kinds() -> OrderedDict:
    """Return tensors of every type, views of one storage, strides, an empty tensor and a parameter."""
    shared = torch.arange(24, dtype=torch.float32)
    # exact in each of the types, as float32 too
    values = [-1.5, 0.0, 2.0, 96.0]
    tensors = OrderedDict(
        float32=torch.tensor(values),
        float64=torch.tensor(values, dtype=torch.float64),
        float16=torch.tensor(values, dtype=torch.float16),
        bfloat16=torch.tensor(values, dtype=torch.bfloat16),
        int64=torch.tensor(7),
        uint8=torch.tensor([1, 255], dtype=torch.uint8),
        bool=torch.tensor([True, False]),
        parameter=torch.nn.Parameter(torch.tensor([[1.0, 2.0]])),
        transposed=shared[:6].view(2, 3).t(),
        part=shared[6:].view(3, 6)[1:, ::2],
        channels_last=shared.view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
        empty=torch.empty(0, 3),
    )
    tensors._metadata = {"": {"version": 1}}
    return tensors


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main()
