"""Libraries that tests compile."""

import shutil
import subprocess

import pytest


def compiled(folder, name, source, *links) -> str:
    (folder / "source.c").write_text(source)
    argv = ["cc", "-shared", "-fPIC", "-o", str(folder / name), str(folder / "source.c"), *links]
    subprocess.run([*argv, f"-Wl,-rpath,{folder}"], check=True, capture_output=True)
    return str(folder / name)


needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
