"""What can be said of the files in launch/ without what they are for."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from runs import ROOT
from topologies import on_target

from diffeq_former.planning.targets import LIBTPU_INIT_ARGS

LAUNCH = ROOT / "launch"
SCRIPTS = [ROOT / ".ci" / "run", *sorted(LAUNCH.glob("*.s*"))]
MANIFESTS = sorted(LAUNCH.glob("*.yaml"))
DOCKERFILE = (LAUNCH / "Dockerfile").read_text()


def test_every_file_says_how_to_use_it_and_what_it_assumes():
    for path in sorted(LAUNCH.iterdir()):
        lines = path.read_text().removeprefix("#!/usr/bin/env bash\n").splitlines()
        end = next(i for i, line in enumerate(lines) if not line.startswith("#"))
        head = "\n".join(lines[:end])
        assert f"launch/{path.name}" in head, path
        assert "\n# Assumes" in head, path
        assert max(map(len, lines)) <= 92, path


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck(script):
    shellcheck = Path(sys.executable).with_name("shellcheck")
    result = subprocess.run([shellcheck, script], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout


def test_flags_of_the_compiler_are_known_to_it():
    """An unknown one would end every process."""
    text = "".join(path.read_text() for path in sorted(LAUNCH.iterdir()))
    flags = set(re.findall(r"--xla_gpu_\w+=\w+", text))
    assert flags
    result = subprocess.run(
        [sys.executable, "-c", "import jax; jax.devices()"],
        env=os.environ | {"XLA_FLAGS": " ".join(flags), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", ["tpu_pod.sh", "gke_jobset.yaml"])
def test_what_is_launched_on_tpus_is_what_a_plan_compiles(name):
    flags = re.findall(r"--xla_(?!gpu)\w+=\w+", (LAUNCH / name).read_text())
    assert tuple(flags) == LIBTPU_INIT_ARGS


@pytest.mark.parametrize("target", [on_target("tpu:v5e:2x2")])
def test_flags_of_the_compiler_for_tpus_are_known_to_it(target):
    command = [sys.executable, ROOT / "tools" / "plan.py"]
    command += [f"--config={ROOT}/configs/tiny.py", f"--target={target}"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


class Required(str):
    """A key that must be there."""


ANY = object()
POD = {
    Required("restartPolicy"): {"Never", "OnFailure"},
    "securityContext": {"fsGroup": int},
    "terminationGracePeriodSeconds": int,
    "nodeSelector": {ANY: str},
    Required("containers"): [
        {
            Required("name"): str,
            Required("image"): str,
            "args": [str],
            "securityContext": {"privileged": bool, "runAsUser": int},
            "env": [
                {
                    Required("name"): str,
                    "value": str,
                    "valueFrom": {"fieldRef": {Required("fieldPath"): str}},
                }
            ],
            "resources": {"limits": {ANY: int}},
            "volumeMounts": [{Required("name"): str, Required("mountPath"): str}],
        }
    ],
    "volumes": [
        {
            Required("name"): str,
            "persistentVolumeClaim": {Required("claimName"): str},
            "emptyDir": {"medium": {"Memory"}},
        }
    ],
}
JOB = {
    Required("parallelism"): int,
    Required("completions"): int,
    Required("backoffLimit"): int,
    "podFailurePolicy": {
        Required("rules"): [
            {
                Required("action"): {"FailJob", "Ignore", "Count"},
                "onExitCodes": {
                    "containerName": str,
                    Required("operator"): {"In", "NotIn"},
                    Required("values"): [int],
                },
            }
        ]
    },
    Required("template"): {Required("spec"): POD},
}
# What the manifests use of the types of jobset.x-k8s.io/v1alpha2, and of what these use
# of batch/v1 and v1.
JOBSET = {
    Required("apiVersion"): {"jobset.x-k8s.io/v1alpha2"},
    Required("kind"): {"JobSet"},
    Required("metadata"): {
        Required("name"): str,
        "annotations": {ANY: str},
        "labels": {ANY: str},
    },
    Required("spec"): {
        "coordinator": {
            Required("replicatedJob"): str,
            "jobIndex": int,
            "podIndex": int,
        },
        "failurePolicy": {
            "maxRestarts": int,
            "rules": [
                {
                    Required("name"): str,
                    Required("action"): {
                        *("FailJobSet", "RestartJobSet"),
                        "RestartJobSetAndIgnoreMaxRestarts",
                    },
                    "onJobFailureReasons": [str],
                }
            ],
        },
        Required("replicatedJobs"): [
            {
                Required("name"): str,
                "replicas": int,
                Required("template"): {Required("spec"): JOB},
            }
        ],
    },
}


def check(value, schema, path="manifest"):
    if isinstance(schema, dict):
        assert isinstance(value, dict), path
        missing = {key for key in schema if isinstance(key, Required)} - set(value)
        assert not missing, f"{path}: no {missing}"
        for key, child in value.items():
            assert key in schema or ANY in schema, f"{path}: unknown {key}"
            check(child, schema.get(key, schema.get(ANY)), f"{path}.{key}")
    elif isinstance(schema, list):
        assert isinstance(value, list) and value, path
        for i, child in enumerate(value):
            check(child, schema[0], f"{path}[{i}]")
    elif isinstance(schema, set):
        assert value in schema, f"{path}: {value}"
    else:
        assert type(value) is schema, f"{path}: {value!r}"


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifest(path):
    manifest = yaml.safe_load(path.read_text())
    check(manifest, JOBSET)
    spec = manifest["spec"]
    [replicated] = spec["replicatedJobs"]
    job = replicated["template"]["spec"]
    pod = job["template"]["spec"]
    [container] = pod["containers"]
    assert job["parallelism"] == job["completions"]
    # A failed pod fails its job at once; with 2, for good.
    assert (job["backoffLimit"], pod["restartPolicy"]) == (0, "Never")
    [rule] = job["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob"
    assert rule["onExitCodes"] == {
        "containerName": container["name"],
        "operator": "In",
        "values": [2],
    }
    [rule] = spec["failurePolicy"]["rules"]
    assert re.fullmatch("[A-Za-z][A-Za-z0-9_]*", rule["name"])
    assert rule["action"] == "FailJobSet"
    assert rule["onJobFailureReasons"] == ["PodFailurePolicy"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    assert "/" not in container["image"]
    assert f"--uid={pod['securityContext']['fsGroup']} " in DOCKERFILE
    assert (ROOT / container["args"][0].removeprefix("--config=")).exists()


def test_manifest_of_gpus_tells_the_place():
    manifest = yaml.safe_load((LAUNCH / "gke_jobset_gpu.yaml").read_text())
    [replicated] = manifest["spec"]["replicatedJobs"]
    assert manifest["spec"]["coordinator"] == {"replicatedJob": replicated["name"]}
    job = replicated["template"]["spec"]
    [container] = job["template"]["spec"]["containers"]
    flags = dict(word.split("=", 1) for word in container["args"])
    assert flags["--coordinator"] == "$(COORDINATOR):12345"
    assert flags["--num_processes"] == str(job["parallelism"] * replicated["replicas"])
    assert flags["--process_id"] == "$(JOB_COMPLETION_INDEX)"
    variables = {variable["name"]: variable for variable in container["env"]}
    field = variables["COORDINATOR"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert field == "metadata.annotations['jobset.sigs.k8s.io/coordinator']"


def test_manifest_of_tpus_has_a_whole_slice():
    manifest = yaml.safe_load((LAUNCH / "gke_jobset.yaml").read_text())
    [replicated] = manifest["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    pod = job["template"]["spec"]
    topology = pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"]
    [container] = pod["containers"]
    chips = container["resources"]["limits"]["google.com/tpu"] * job["parallelism"]
    assert chips == math.prod(int(side) for side in topology.split("x"))


def instructions():
    """(word, rest) of each line of the Dockerfile."""
    lines = re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE).splitlines()
    return [line.split(" ", 1) for line in lines if line]


def test_image_is_plain_and_runs_as_a_user():
    words = [word for word, _ in instructions()]
    assert instructions()[0] == ["FROM", "python:3.12-slim"]
    assert words.index("USER") < words.index("ENTRYPOINT")
    assert dict(instructions())["USER"] != "root"
    [extra] = re.findall(r"^ARG EXTRA=(\w+)$", DOCKERFILE, re.MULTILINE)
    assert f'"{extra}": ["jax[{extra}]"]' in (ROOT / "setup.py").read_text()


def test_image_has_what_it_needs(tmp_path):
    """Its folder, made by hand, runs its entry point."""
    for word, rest in instructions():
        if word == "COPY":
            *sources, destination = rest.split()
            for source in sources:
                if (ROOT / source).is_dir():
                    shutil.copytree(ROOT / source, tmp_path / destination)
                else:
                    shutil.copy(ROOT / source, tmp_path / destination)
    entry = json.loads(dict(instructions())["ENTRYPOINT"])
    assert entry[0] == "python"
    command = [sys.executable, *entry[1:], "--config=configs/tiny.py", "--workdir=run"]
    environment = {"PYTHONPATH": "", "JAX_PLATFORMS": "cpu"}
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 2
    assert "config.data.path is empty" in result.stderr
    assert (tmp_path / "README.md").exists()  # setup.py reads it
