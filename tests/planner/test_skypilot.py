"""`mxscale plan plan.task=`: a plan as a task of SkyPilot."""

import json
import shlex
import shutil
import subprocess

import pytest
import yaml
from composed import composed_values
from refusals import contains, error_of
from repository import ROOT

from mxscale.cli import verbs
from mxscale.util import csv_tables

SKYPILOT = ROOT / ".venv-skypilot"
IMAGE, BUCKET, SHARE = "plan.image=registry/mxscale:source", "plan.storage=s3://bucket", "plan.storage=10.0.0.1:/runs"
P3 = ["machine.instance=p3.16xlarge", "plan.epochs=90"]
RECORDS = ["data=recordio", "data.train=/mnt/mxscale/train.rec", "data.val=/mnt/mxscale/val.rec", "plan.images=1281167"]


@pytest.fixture
def task(tmp_path):
    """Return the function that plans with these settings and returns the task."""

    def written(*overrides) -> dict:
        path = tmp_path / "sky.yaml"
        verbs.plan(*composed_values("plan", f"plan.output={tmp_path}", f"plan.task={path}", *overrides))
        return yaml.safe_load(path.read_text())

    return written


def command(task: dict) -> list:
    """Return the words of the training command of a task."""
    return shlex.split(task["run"].splitlines()[-1])


def test_one_machine_trains_with_runs_in_a_bucket(task):
    typed = ["optimizer.lr=0.4", "+optimizer.params.x=1", "name='it is'", "machine.watts=4000", "data.image_size=96"]
    made = task(*P3, *RECORDS, "plan.nodes=1", "plan.precision=amp", *typed, IMAGE, BUCKET)
    assert made["num_nodes"] == 1 and made["name"] == "mxscale-resnet50-v1b"
    assert made["resources"]["infra"] == "aws/us-east-1" and made["resources"]["instance_type"] == "p3.16xlarge"
    assert made["resources"]["image_id"] == "docker:registry/mxscale:source"
    assert made["file_mounts"] == {"/mnt/mxscale": {"source": "s3://bucket", "mode": "MOUNT_CACHED"}}
    assert "setup" not in made and made["envs"]["MXSCALE_ROOT"] == "yes"
    assert {
        *("data=recordio", "model=resnet50_v1b", "precision=amp", "epochs=90", *typed, *RECORDS[1:3]),
        *("machine=aws", "machine.usd_per_hour=24.48", "runs=/mnt/mxscale/runs", "resume=auto", "launch.device=gpu"),
    } <= set(command(made))
    assert not [word for word in command(made) if word.startswith("plan.")]


def test_several_machines_share_runs_and_keys(task):
    made = task(*P3, *RECORDS, "plan.nodes=2", IMAGE, SHARE)
    assert made["envs"]["SHARE"] == "10.0.0.1:/runs" and made["envs"]["DEVICES"] == "8" and "mount" in made["setup"]
    assert "machine.nodes=2" in command(made)


def test_one_process_drives_all_devices_of_the_plan(task):
    made = task(*P3, *RECORDS, "plan.nodes=1", "plan.comm=device", IMAGE, BUCKET)
    assert made["envs"]["DEVICES"] == "8" and "comm=device" in command(made)


def test_servers_on_the_nodes_are_one_for_each(task):
    made = task(*P3, *RECORDS, "plan.nodes=4", "plan.comm=parameter_server", "plan.servers=0", IMAGE, SHARE)
    assert {"comm=parameter_server", "comm.servers=4"} <= set(command(made))


def test_an_experiment_trains_as_planned(task):
    made = task("experiment=aws_horovod", "plan.nodes=8", *RECORDS[1:], IMAGE, SHARE)
    words = command(made)
    assert {"experiment=aws_horovod", "data=recordio", "model=resnet50_v1", "batch.per_device=256"} <= set(words)
    assert made["num_nodes"] == 8


def test_a_spent_budget_is_no_reason_to_rent_again(task):
    made = task(*P3, *RECORDS, "plan.nodes=1", "budget.max_usd=100", IMAGE, BUCKET)
    assert "job_recovery" not in made["resources"] and "budget.max_usd=100" in command(made)


def test_the_first_recommended_plan_is_the_task(task):
    grid = ["plan.nodes=[1,2,4,8]", "plan.deadline_hours=1", IMAGE, SHARE]
    assert task(*P3, *RECORDS, *grid, "precision=amp", "plan.batch=256")["num_nodes"] == 4


def test_a_folder_of_images_here_is_copied(task, tmp_path, photo):
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(100):
            photo.save(tmp_path / "photos" / name / f"{number}.jpg")
    made = task("machine.instance=p3.2xlarge", "data=imagefolder", f"data.root={tmp_path}/photos", "plan.nodes=1",
                IMAGE, BUCKET)  # fmt: skip
    assert made["file_mounts"]["/mnt/images"] == f"{tmp_path}/photos"
    assert [word for word in command(made) if word.startswith("data.root=")] == ["data.root=/mnt/images"]


@pytest.mark.parametrize(
    "settings, expected",
    [
        ([*RECORDS, "plan.nodes=1", BUCKET], ["plan.image is missing", "REGISTRY"]),
        ([*RECORDS, "plan.nodes=1", IMAGE], ["plan.storage=None", "HOST:/PATH", "s3://BUCKET"]),
        ([*RECORDS, "plan.nodes=1", IMAGE, "plan.storage=/mnt"], ["plan.storage=/mnt", "HOST:/PATH", "s3://BUCKET"]),
        ([*RECORDS, "plan.nodes=2", IMAGE, BUCKET], ["plan.storage=s3://bucket", "HOST:/PATH"]),
        ([*RECORDS, "plan.nodes=2", "plan.comm=parameter_server", IMAGE, SHARE], ["are alike", "plan.servers=0"]),
        (["data=imagefolder", "data.num_classes=5", "plan.images=999", "plan.nodes=1", IMAGE, BUCKET],
         ["data.root is missing", "data.root=DIR"]),
        ([*RECORDS, "plan.nodes=1", "data.val=/home/me/val.rec", IMAGE, BUCKET], ["data.val=/home/me", "/mnt/mxscale"]),
        (["data.root=data/imagenet", "plan.nodes=1", IMAGE, BUCKET], ["data.root=data/imagenet", "/mnt/mxscale"]),
        ([*RECORDS, "model.pretrained=my.params", "plan.nodes=1", IMAGE, BUCKET], ["model.pretrained=my.params"]),
        ([*RECORDS, "plan.nodes=1", "plan.gpu=A100", IMAGE, BUCKET], ["p3.16xlarge as it is", "plan.gpu"]),
        ([*RECORDS, "plan.nodes=1", "plan.deadline_hours=0.1", IMAGE, BUCKET], ["no plan finishes within 0.1 h"]),
        ([*RECORDS, "plan.nodes=1", "machine=custom", "machine.usd_per_hour=1", IMAGE, BUCKET], ["machine=custom"]),
        (["machine=runpod", "machine.instance=8x_H100-SXM_SECURE", *RECORDS, "plan.nodes=1", IMAGE, SHARE],
         ["machine=runpod"]),
        ([*RECORDS, "plan.nodes=1", "plan.task=no/such/sky.yaml", IMAGE, BUCKET], ["plan.task=no/such/sky.yaml"]),
    ],
    ids=["image", "storage", "form of storage", "bucket of several", "servers", "data", "path of a file",
         "path of a folder", "weights", "other GPU", "limit", "machine", "RunPod", "folder"],
)  # fmt: skip
def test_what_cannot_become_a_task_is_one_line(task, settings, expected):
    contains(error_of(task, *P3, *settings), *expected)


# Lets SkyPilot check a task and choose its machines, as `sky launch --dryrun` does for an account with that cloud
CHOOSE = """
import json, sys
from unittest import mock
import sky
from sky import optimizer
from sky.utils import registry
task = sky.Task.from_yaml(sys.argv[1])
with sky.Dag() as dag:
    dag.add(task)
enabled = [registry.CLOUD_REGISTRY.from_str(sys.argv[2])]
with mock.patch("sky.check.get_cached_enabled_clouds_or_refresh", return_value=enabled):
    optimizer.Optimizer.optimize(dag, quiet=True)
chosen = task.best_resources
print(json.dumps({"nodes": task.num_nodes, "instance": chosen.instance_type, "spot": chosen.use_spot,
                  "usd": round(chosen.get_cost(3600), 4), "recovery": chosen.job_recovery,
                  "storage": [mount.mode.value for mount in task.storage_mounts.values()]}))
"""
CATALOGS = ROOT / "tests" / "fixtures" / "catalogues" / "v8"  # of Azure, GCP, Lambda
OF_AWS = [
    ["InstanceType", "AcceleratorName", "AcceleratorCount", "vCPUs", "MemoryGiB", "GpuInfo", "Price", "SpotPrice",
     "Region", "AvailabilityZone", "Arch"],
    ["p3.16xlarge", "V100", "8.0", "64.0", "488.0", "{}", "24.48", "7.5", "us-east-1", "us-east-1a", "x86_64"],
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(not (SKYPILOT / "stamp").exists(), reason="make setup-skypilot")
@pytest.mark.parametrize(
    "rented, nodes",
    [
        ("aws p3.16xlarge on_demand", 2),
        ("aws p3.16xlarge spot", 1),
        ("azure Standard_ND96asr_v4 on_demand", 2),
        ("gcp a2-highgpu-1g on_demand", 2),
        ("lambda gpu_8x_a100 on_demand", 1),
    ],
)
def test_skypilot_rents_the_planned_machines_at_the_planned_price(task, tmp_path, monkeypatch, rented, nodes):
    cloud, instance, market = rented.split()
    monkeypatch.setenv("HOME", str(tmp_path))
    cache = shutil.copytree(CATALOGS, tmp_path / ".sky" / "catalogs" / "v8")
    (cache / "aws").mkdir()
    (cache / "aws" / "vms.csv").write_text(csv_tables.text(OF_AWS))
    prices = f"machine.prices={tmp_path}/prices.csv"
    verbs.prices(*composed_values("prices", "update=skypilot", prices))
    machine = [f"machine={cloud}", f"machine.instance={instance}", f"machine.market={market}", prices]
    made = task(*machine, *RECORDS, f"plan.nodes={nodes}", IMAGE, SHARE if nodes > 1 else BUCKET)
    [usd] = [float(word.partition("=")[2]) for word in command(made) if word.startswith("machine.usd_per_hour=")]
    argv = [SKYPILOT / "bin" / "python", "-c", CHOOSE, tmp_path / "sky.yaml", cloud]
    out = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert json.loads(out.splitlines()[-1]) == {
        "nodes": nodes, "instance": instance, "spot": market == "spot", "usd": round(usd, 4),
        "recovery": {"recover_on_exit_codes": [75], "strategy": None},
        "storage": [] if nodes > 1 else ["MOUNT_CACHED"],
    }  # fmt: skip
