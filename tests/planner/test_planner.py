"""`mxscale plan`: output, files, refusals."""

import csv
import json

import pytest
from composed import composed_values
from refusals import command_error, contains, error_of

from mxscale.cli import main, verbs
from mxscale.cost import price_table
from mxscale.perfmodel import hardware
from mxscale.util import csv_tables
from mxscale.util.errors import ConfigError


def plan(output, *overrides):
    """Run `mxscale plan` with these settings in this process."""
    verbs.plan(*composed_values("plan", f"plan.output={output}", *overrides))


P3 = "machine.instance=p3.16xlarge"
OWN = ["machine=local", "plan.gpus=1", "plan.nic_gbps=1", "plan.images_per_s=9"]


def test_command_prints_plans_and_writes_files(tmp_path, capsys):
    both = ["plan.comm=[horovod,parameter_server]", "plan.nodes=[1,2,4,8]", "plan.epochs=90"]
    plan(tmp_path, "model=resnet50_v1b", P3, *both, "plan.deadline_hours=3", "plan.input_images_per_s=20000")
    out = capsys.readouterr().out
    for text in ("25.6 million gradients", "90 of 1,281,167 images", "mxnet-perf-faq", "24.48 USD/h", "c5.18xlarge",
                 "within 3 h: 8 x p3.16xlarge", "20,000 images/s per node"):  # fmt: skip
        assert text in out
    table = [line for line in out.splitlines() if line.endswith(("  compute", "  exchange", "  input"))]
    assert len(table) == 8 and sum(line.startswith("* ") for line in table) >= 1
    with open(tmp_path / "plan.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8 and {"instance", "usd", "eur", "hours", "efficiency", "bound"} <= set(rows[0])
    first = rows[0]
    assert float(first["usd"]) == pytest.approx(float(first["hours"]) * 24.48, rel=1e-4)


def test_larger_batches_take_more_epochs_to_a_target(tmp_path, capsys):
    grid = ["plan.nodes=[8,32,512]", "plan.batch=256", "precision=amp"]
    plan(tmp_path, "machine.instance=p4d.24xlarge", *grid, "plan.target=75.9", "json=true")
    printed = json.loads(capsys.readouterr().out)
    assert [row["epochs"] for row in printed["plans"]] == pytest.approx([48.02, 84.5], rel=1e-3)
    assert list(printed["left_out"]) == ["the epochs to the target are unknown for so large a global batch"]


def test_a_recommended_plan_states_the_hours_within_its_error(tmp_path, capsys):
    plan(tmp_path, P3, "plan.nodes=1", "plan.epochs=90", "launch.setup_minutes=30", "json=true")
    (answer,) = json.loads(capsys.readouterr().out)["answer"].values()
    off = hardware.errors("published")["p90"] / 100 * (answer["hours"] - 0.5)  # the set-up takes what it takes
    assert answer["hours_90"] == pytest.approx([answer["hours"] - off, answer["hours"] + off])
    plan(tmp_path, *OWN, "plan.epochs=90")
    assert "with its error" not in capsys.readouterr().out  # a given rate has none


def test_a_gpu_of_ones_own_has_its_published_rate_and_links(tmp_path, capsys):
    own = ["machine=local", "plan.gpus=8", "plan.nodes=1", "plan.epochs=90"]
    plan(tmp_path, *own, "plan.gpu=V100", "json=true")
    known = json.loads(capsys.readouterr().out)["known"]
    assert "on V100" in known["device"] and known["links"].startswith("local: 8 x V100, nvlink2")
    contains(error_of(plan, tmp_path, *own, "plan.gpu=V10O"), "plan.gpu=V10O", "plan.gpu=V100")


def test_energy_is_by_the_power_of_the_machines(tmp_path, capsys):
    def planned(*settings):
        plan(tmp_path, "plan.nodes=2", "plan.epochs=90", "json=true", *settings)
        printed = json.loads(capsys.readouterr().out)
        return printed["plans"][0], printed["known"]["energy"]

    row, power = planned(P3)
    assert row["kwh"] == pytest.approx(row["hours"] * 2 * 8 * 0.3) and "8 x 300 W, the TDP of its GPUs" in power
    row, power = planned(P3, "machine.watts=4500")
    assert row["kwh"] == pytest.approx(row["hours"] * 2 * 4.5) and "4500 W (machine.watts)" in power
    row, power = planned(*OWN)
    assert row["kwh"] is None and "unknown" in power


def test_json_is_one_object(tmp_path, capsys):
    plan(tmp_path, P3, "plan.nodes=2", "json=true", "plan.images=5000", "epochs=2")
    (line,) = capsys.readouterr().out.splitlines()
    printed = json.loads(line)
    assert printed["count"] == 1 and printed["plans"][0]["devices"] == 16
    assert set(printed["answer"]) == {"cheapest and fastest"}
    assert "2 of 5,000 images (given)" in printed["known"]["epochs"]


def test_large_grid_prints_its_front(tmp_path, capsys):
    batches = "plan.batch=[" + ",".join(map(str, range(8, 136, 8))) + "]"
    plan(tmp_path, P3, batches, "plan.double_buffering=[false,true]", "plan.compression=[none,fp16]")
    out = capsys.readouterr().out
    assert "of 256 plans: no other is both faster and cheaper" in out and out.count("\n") < 60
    assert max(map(len, out.splitlines()[:-4])) <= 120


def test_missed_deadline_recommends_the_nearest_plan(tmp_path, capsys):
    plan(tmp_path, P3, "plan.deadline_hours=0.001")
    assert "no plan finishes within 0.001 h; the nearest: 8 x p3.16xlarge" in capsys.readouterr().out


def test_local_machine_is_planned_from_given_values(tmp_path, capsys):
    plan(tmp_path, "machine=local", "plan.gpus=2", "plan.nic_gbps=10", "plan.images_per_s=95", "plan.nodes=[1,4]")
    texts = ("given (plan.images_per_s)", "cost unknown", "price unknown", "fastest: 4 x local")
    contains(capsys.readouterr().out, *texts)


@pytest.mark.parametrize(
    "given, message",
    [
        ([P3, "model.name=resnet50v1b"], "did you mean resnet50_v1b?"),
        (["machine.instance=p3.16xlarg"], "machine.instance=p3.16xlarg: did you mean machine.instance=p3.16xlarge?"),
        (["machine.instance=gpu_8x_a100"], "machine.instance=gpu_8x_a100 is of lambda: set machine=lambda"),
        (["machine=gcp", "machine.instance=a2-highgpu-3g"], "did you mean machine.instance=a2-highgpu-8g?"),
        (["machine=azure", "machine.instance=Standard_ND96asr_v4", "machine.region=eastus3"], "machine.region=eastus?"),
        (["plan.instance=[p3.16xlarge,p9.large]"], "machine.instance=p9.large"),
        ([P3, "machine.region=eu-wst-1"], "machine.region=eu-wst-1"),
        ([P3, "plan.comm=hrovod"], "plan.comm=hrovod: did you mean horovod?"),
        (
            [P3, "plan.comm=[device]", "plan.nodes=[2]"],
            "comm=device drives the devices of one node",
        ),
        ([P3, "comm=kvstore_local"], "comm=kvstore_local has no performance model: set plan.comm to one of"),
        ([P3, "plan.instance=p3.16xlarge:cheap"], "expected INSTANCE or INSTANCE:on_demand or INSTANCE:spot"),
        ([P3, "machine.market=spot", "machine.as_of=2020-01-01"], "no price of p3.16xlarge us-east-1 spot on"),
        ([P3, "plan.precision=amp", "plan.double_buffering=true"], "double buffering does not work with precision=amp"),
        ([P3, "plan.precision=[int8]"], "plan.precision=int8"),
        ([P3, "plan.nodes=0"], "plan.nodes=0: expected from 1 to 1000000"),
        ([P3, "plan.nodes=[]"], "plan.nodes=[]: expected a list"),
        ([P3, "plan.servers=3y"], "plan.servers=3y"),
        ([P3, "plan.servers='99999999999999999999'"], "expected whole numbers of at most six digits"),
        ([P3, "plan.double_buffering=1"], "plan.double_buffering=1: expected true or false"),
        ([P3, "plan.budget_usd=-3"], "plan.budget_usd=-3.0: expected above 0"),
        ([P3, "plan.budget_eur=0"], "plan.budget_eur=0.0: expected above 0"),
        ([P3, "plan.deadline_hours=nan"], "plan.deadline_hours=nan: expected above 0"),
        ([P3, "plan.images=many"], "plan.images=many: expected a whole number"),
        ([P3, "plan.epochs=-1"], "plan.epochs=-1.0"),
        ([P3, "plan.target=76"], "plan.target=76 with model=resnet50_v1b data=imagenet: epochs are known for 75.9"),
        ([P3, "plan.target=75.9", "plan.epochs=90"], "plan.target with plan.epochs"),
        ([P3, "plan.target=75.9", "plan.images=5000"], "plan.target: its epochs are of ImageNet at 224 px"),
        ([P3, "plan.target=75.9", "data.image_size=64"], "leave out plan.images, data.image_size"),
        (["machine.instance=c5.18xlarge", "plan.nodes=1", "precision=amp"], "precision=amp: c5.18xlarge has no GPU"),
        (
            ["machine.instance=c5.18xlarge", "plan.nodes=1", "plan.precision=[amp,float32]"],
            "precision=amp: c5.18xlarge has no GPU; use float32",
        ),
        ([P3, "precision=bf16"], "precision=bf16: p3.16xlarge has GPUs; use amp"),
        (
            ["machine.instance=c5.18xlarge", "plan.nodes=1", "precision=bf16"],
            "in bf16 on CPU of c5.18xlarge is unknown",
        ),
        (["machine.instance=c5.18xlarge", "plan.gpus=4"], "plan.gpus=4: c5.18xlarge has no GPUs"),
        ([P3, "data=imagefolder"], "plan.images is missing"),
        (OWN[:-1], "give plan.images_per_s"),
        (["machine.instance=p2.xlarge"], "plan.nic_gbps is missing"),
        (["machine=local"], "plan.gpus is missing"),
        ([*OWN, "plan.budget_usd=5"], "a budget needs a price"),
        ([P3, "machine.region=eu-west-1", "plan.comm=parameter_server"], "plan.server_usd_per_hour"),
        (
            [P3, "plan.comm=parameter_server", "plan.server_instance=c5.18xlrge"],
            "did you mean machine.instance=c5.18xlarge?; or give plan.server_usd_per_hour",
        ),
        (
            [P3, "plan.comm=parameter_server", "plan.server_instance=own", "plan.server_usd_per_hour=1"],
            "plan.server_instance=own: its network is unknown: give plan.nic_gbps",
        ),
        ([P3, "plan.calibrate=/nowhere"], "plan.calibrate=/nowhere: neither the directory of a run"),
        ([P3, "json=1"], "json=1: expected true or false"),
    ],
)
def test_invalid_setting_is_refused(given, message, tmp_path):
    assert message in error_of(plan, tmp_path, *given)


def test_unwritable_output_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"plan\.output"):
        plan(tmp_path / "file" / "plans", P3)


@pytest.mark.slow
@pytest.mark.parametrize("provider", price_table.CLOUDS)
def test_every_listed_instance_has_a_plan_with_an_interval(provider, tmp_path, capsys):
    """One node needs no network; a price of any region is found, on demand if the instance has one."""
    rows = [row for row in csv_tables.read("prices") if row["provider"] == provider]
    last = {row["instance"]: row for row in sorted(rows, key=lambda row: row["market"] == "on_demand")}
    assert last
    for instance, row in last.items():
        place = [f"machine.{name}={row[name]}" for name in ("instance", "region", "market")]
        plan(tmp_path, f"machine={provider}", *place, "plan.nodes=1", "json=true", "model=resnet18_v1b")
        (answer,) = json.loads(capsys.readouterr().out.splitlines()[-1])["answer"].values()
        low, high = answer["hours_90"]
        assert 0 < low < answer["hours"] < high and answer["usd"] > 0, instance


def test_a_plan_on_several_nodes_asks_for_an_unknown_network(tmp_path, capsys):
    machine = ["machine=lambda", "machine.instance=gpu_8x_h100_sxm5", "plan.nodes=[1,2]"]
    assert "plan.nic_gbps is missing: the link between nodes of gpu_8x_h100_sxm5" in error_of(plan, tmp_path, *machine)
    plan(tmp_path, *machine, "plan.nic_gbps=100")
    assert "100 Gbit/s between nodes" in capsys.readouterr().out


def test_a_plan_without_a_region_is_of_the_usual_one(tmp_path, capsys):
    plan(tmp_path, "machine=azure", "machine.instance=Standard_ND96isr_H100_v5", "plan.nodes=[2]")
    contains(capsys.readouterr().out, "Standard_ND96isr_H100_v5 eastus on_demand 98.32 USD/h", "3200 Gbit/s")


def test_cards_of_an_instance_have_its_link(tmp_path, capsys):
    plan(tmp_path, "machine=azure", "machine.instance=Standard_NC96ads_A100_v4", "plan.nodes=1")
    assert "4 x A100-80GB, pcie4" in capsys.readouterr().out


@pytest.mark.slow
def test_entry_script_prints_the_plan(cli, tmp_path):
    """An unknown key is named; a plan needs neither data nor a region."""
    done = cli("plan", P3, f"plan.output={tmp_path}", "plan.nodes=[1]", small=False)
    assert "cheapest and fastest: 1 x p3.16xlarge" in done.out
    done = cli("plan", P3, "plan.nodez=3", small=False, expect=2)
    assert done.err == "error: unknown key plan.nodez: did you mean plan.nodes?\n"


def test_removed_setting_names_the_way_that_remains(tmp_path, capsys):
    assert "plan.unavailable was removed: name the machines" in command_error(
        capsys, "plan", f"runs={tmp_path}", P3, "plan.unavailable=p3.16xlarge"
    )


def test_markets_can_be_compared(tmp_path, capsys):
    (tmp_path / "vms.csv").write_text(
        "InstanceType,AcceleratorName,AcceleratorCount,Region,Price,SpotPrice\n"
        "p3.16xlarge,V100,8.0,us-east-1,24.48,9\np3.16xlarge,V100,8.0,us-east-1,24.48,8\n"
    )
    assert main.main(["prices", f"runs={tmp_path}", f"update={tmp_path}/vms.csv", "as_of=2017-11-12"]) == 0
    capsys.readouterr()
    markets = ["plan.instance=[p3.16xlarge,p3.16xlarge:spot]", "plan.nodes=1", "machine.as_of=2017-11-12"]
    plan(tmp_path, P3, f"runs={tmp_path}", *markets, "json=true")
    both = json.loads(capsys.readouterr().out.splitlines()[-1])["plans"]
    usd = {row["instance"]: row["usd"] / row["hours"] for row in both}
    assert usd == pytest.approx({"p3.16xlarge": 24.48, "p3.16xlarge:spot": 8})


def test_instance_with_a_given_price_is_planned(tmp_path, capsys):
    by_hand = ["machine.usd_per_hour=7.8", "plan.gpus=8", "plan.nic_gbps=100", "plan.images_per_s=100"]
    plan(tmp_path, "machine=aws", "machine.instance=g3.16xlarge", "plan.images=1000", *by_hand)
    assert "8 x device" in capsys.readouterr().out
