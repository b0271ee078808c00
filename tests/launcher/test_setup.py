"""Set-up of an attempt."""

from mxscale.config.schema import from_dict
from mxscale.environment import description
from mxscale.launcher import setup
from mxscale.launcher.context import Resources, RunContext, Signals
from mxscale.rundir import directory
from mxscale.rundir.price import Price


def test_an_attempt_with_other_code_than_the_last_one_says_so(tmp_path, monkeypatch, capsys):
    run = directory.create(from_dict({"runs": str(tmp_path)}))

    def begun(code):
        monkeypatch.setattr(description, "code", lambda: code)
        setup.begin_attempt(RunContext(run, run.config(), Resources([], Price(known=False), 0.0), Signals()))
        return capsys.readouterr().out

    assert [begun("first"), begun("first")] == ["", ""]
    assert begun("second").startswith("code      not that of the last attempt: the weights may differ")
    run.write("environment.json", {"code": None})  # recorded before code had a digest
    assert begun("second").startswith("code      not that of the last attempt")
    (run.path / "environment.json").write_text("{torn")
    begun("second")
    assert run.read("environment.json")["code"] == "second"
