"""Settings: each key of the schema with values of right and wrong types, and forms of overrides."""

import typing
from functools import partial
from pathlib import Path

from . import runs
from .case import MARKER, REFUSED, Case, choice, nothing
from .in_process import SMALL

NUMBERS = ("0", "1", "-1", "3", "0.5", "1e-30", "1e-320", "1e30", "1e308", "-1e308", "2147483648", "1" + "0" * 30,
           "9223372036854775807", "9223372036854775808", ".inf", "-.inf", ".nan", "007", "1_000", "0x10")  # fmt: skip
TEXTS = ("x", "''", "' '", "null", "true", "-x", "..", "a/b", "/", "~", "é", "'\\x1b[31m'", "'a b'", "'a\tb'", "'%s'",
         "x" * 300, "'*'", "\"'\"")  # fmt: skip
SHAPES = ("[]", "[1]", "[1,2,3]", "[a,b]", "[[1]]", "{}", "{a:1}", "[null]", "[1e400,1,1]", "[-1,0.5]", "{a:{b:c}}")
FORMS = ("${{{key}}}", "${{seed}}", "${{nosuch}}", "${{oc.env:NOSUCH}}", "${{oc.env:PASSWORD,x}}", "${{", "???", "[",
         "a,b", "1,2", "range(1,3)", "choice(a,b)", "glob(*)", "int(x)", "'${{data}}'", "{{a", "$(x)",
         "${{oc.decode:1}}")  # fmt: skip
KEYS = (*("{key}",) * 7, "+{key}", "++{key}", "~{key}", "{key}x", "{key}.a", "{group}", "@{key}", "{key}@a",
        "{group}@x")  # fmt: skip
# Not drawn: they would use the network, other hosts, a container or other folders
SPARED = ("data.mirror", "launch.hosts", "model.pretrained", "rerun.run", "entry",
          "runs", "data.cache")  # fmt: skip
# Large numbers are valid, and would take the memory or the time of this machine
LARGE = ("batch.per_device", "batch.accumulation", "data.num_images", "data.num_classes", "data.shards",
         "data.threads", "launch.threads", "launch.ranks", "comm.servers", "data.image_size", "data.pack_short_side",
         "data.eval_resize", "data.augment.pad", "max_steps", "epochs")  # fmt: skip


def make(draw, folder: Path, command: bool, shared: Path) -> Case:
    from mxscale.config.schema import RULES

    base = [*SMALL, "tracking=none", f"runs={folder}/runs", f"data.cache={shared}/cache"]
    keys = [key for key in RULES if key not in SPARED]
    drawn, certain = [], False
    for _ in range(1 if draw.random() < 0.8 else 2):
        key = choice(draw, keys)
        override, wrong = one(draw, key)
        drawn.append(override)
        certain = certain or wrong
    names = {word for override in drawn for word in (override.lstrip("+~@").partition("=")[0].partition("@")[0],)}
    parts = {part for name in names for part in (name, name.split(".")[0], name.rpartition(".")[2])}
    parts |= {"training images" for name in names if name.startswith("data.")}  # left by a share or a limit
    return Case(
        f"{' '.join(drawn)}",
        ["train", *base, *drawn],
        tuple(sorted(parts)),
        expect=REFUSED if certain else None,
        verify=partial(runs.finished, folder) if not any("dry_run" in o for o in drawn) else nothing,
        failure=r"(?i)nan|infinite|not finite|Cannot allocate|bad_alloc|memory",
    )


def one(draw, key: str) -> tuple:
    """Return an override of a key, and whether it must be refused."""
    from mxscale.config.schema import RULES, Config

    rule, hint = RULES[key], _hint(Config, key)
    values = {"number": NUMBERS, "text": TEXTS, "shape": SHAPES, "form": FORMS}
    if rule.choices:
        values["valid"] = rule.choices
    kind = choice(draw, [*values, "near"])
    if kind == "near" and rule.low is not None:
        value = str(rule.low + choice(draw, (-1, 0, 1)))
    elif kind == "near":
        value = f"http://bob:{MARKER}@host" if "uri" in key else "2"
    else:
        value = choice(draw, values[kind]).format(key=key) if kind == "form" else choice(draw, values[kind])
    if key in LARGE and kind == "number" and len(value.lstrip("-")) > 3 and "-" not in value:
        value = "4"
    form = choice(draw, KEYS)
    group = key.rpartition(".")[0] or key
    name = form.format(key=key, group=group)
    scalar = hint in (int, float, bool)
    wrong = form in ("{key}", "++{key}") and scalar and (kind == "shape" or value in ("x", "a/b", "é", "' '"))
    return (name if name.startswith("~") else f"{name}={value}"), wrong


def _hint(cls: type, key: str):
    """Return the type of a setting, without Optional."""
    *groups, last = key.split(".")
    for group in groups:
        cls = typing.get_type_hints(cls)[group]
    hint = typing.get_type_hints(cls)[last]
    return typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Union else hint
