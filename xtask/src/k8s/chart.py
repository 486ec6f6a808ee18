"""The Helm chart, rendered by Helm's own engine and compared with Kubernetes' published schemas.

    chart.py CHART manifests FOLDER    writes the plain manifests
    chart.py CHART check FOLDER        checks everything, and writes configurations of the daemon for a trial
"""

import json
import sys
from pathlib import Path

import yaml
from helm_python import Chart, HelmError, lint
from kubernetes_validate import validate

# Versions of Kubernetes that the chart is for: the first that it names, up to the last of the schemas.
VERSIONS = [f"1.{minor}" for minor in range(30, 38)]
# Objects of the Prometheus Operator, whose schemas Kubernetes does not publish.
FOREIGN = {"ServiceMonitor", "PrometheusRule"}

HEADER = "# Made by `cargo xtask manifests` from k8s/chart, and compared with it by `cargo xtask ci-extra chart`.\n"
# Templates in the order in which their objects are made.
TEMPLATES = ["namespace", "rbac", "config", "claims", "daemonset", "monitoring"]
# First version that has an object which older ones lack.
SINCE = {"DeviceClass": "1.34"}
# Slices that the driver publishes (k8s/tests/node/golden), with the versions whose schemas have their API.
SLICES = {
    "slice-1.32.json": ["1.32", "1.33"],
    "slice-1.33.json": ["1.33", "1.34"],
    "slice-1.34.json": ["1.34", "1.35", "1.36", "1.37"],
    "slice-1.36.json": ["1.34", "1.35", "1.36", "1.37"],
}

EVERYTHING = {
    "image": {"repository": "registry.example/gpushare", "digest": "sha256:" + "0" * 64, "pullPolicy": "Always"},
    "imagePullSecrets": [{"name": "registry"}],
    "cards": {"access": "host"},
    "plugin": {
        "shares": 1000,
        "inject": "mounts",
        "maxima": {
            "default": {"weight": 200},
            "namespaces": {"research": {"memory": "40GiB", "compute": "50%", "weight": 10000, "priority": "high"}},
        },
    },
    "scheduler": {
        "config": {
            "connections_per_user": 100000,
            "user_groups": ["/system.slice/jupyter-*.service"],
            "log_format": "json",
            "managed_limit": "160GiB",
            "self_service": {"max_memory": "8GiB", "max_sessions": 64, "oversubscribe": False},
            "scheduling": {"quantum": "2s", "epsilon": "5%", "late_factor": 4, "lease_chunk": "64MiB"},
            "gpus": {"0": {"quantum": "40ms"}, "GPU-00000000-0000-0000-0000-000000000001": {"capacity": "70GiB"}},
            "audit": {"size": "16MiB", "files": 8, "allocations": "1/100"},
            "dashboard": {"address": "127.0.0.1:9403", "hosts": ["gpu1.example.org"], "lifetime": "8h"},
        }
    },
    "metrics": {
        "port": 65535,
        "names": True,
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "alerts": {"enabled": True, "labels": {"release": "prometheus"}},
        "dashboard": {"enabled": True},
    },
    "namespace": {"create": True},
    "serviceAccount": {"name": "gpushare-node"},
    "affinity": {"podAffinity": {}},
    "maxUnavailable": "10%",
}
RENDERED = {
    "defaults": {},
    "everything": EVERYTHING,
    "nvidia-runtime": {"plugin": {"inject": "nvidia-runtime"}},
    "dra": {"plugin": {"offer": "dra", "claimMemory": 150}},
    "no account": {"serviceAccount": {"create": False, "name": "mine"}, "rbac": {"create": False}},
}

# Values that are refused, and what the refusal says.
REFUSED = [
    ({"plugin": {"shares": 0}}, "plugin.shares is 0; write a number from 1 to 1000"),
    ({"plugin": {"shares": 1001}}, "plugin.shares is 1001; write a number from 1 to 1000"),
    ({"plugin": {"shares": "many"}}, "at '/plugin/shares': got string, want integer"),
    ({"plugin": {"inject": "magic"}}, "must be one of 'cdi', 'mounts', 'nvidia-runtime'"),
    ({"plugin": {"offer": "both"}}, "must be one of 'device-plugin', 'dra'"),
    ({"plugin": {"claimMemory": 0}}, "plugin.claimMemory is 0; write a number from 1 to 1000"),
    ({"plugin": {"offer": "dra", "inject": "mounts"}}, "plugin.inject is not `cdi`; set it, or set plugin.offer"),
    ({"plugin": {"share": 3}}, "additional properties 'share' not allowed"),
    ({"plugin": {"kubeletDir": "var/lib/kubelet"}}, "at '/plugin/kubeletDir'"),
    ({"plugin": {"maxima": {"default": {"weight": 10001}}}}, "maxima.default.weight is 10001; write a number from 1 to 10000"),
    ({"plugin": {"maxima": {"default": {"compute": "101%"}}}}, "default.compute is 101%; write a share from 0.01% to 100%"),
    (
        {"plugin": {"maxima": {"namespaces": {"research": {"compute": "0%"}}}}},
        "plugin.maxima.namespaces.research.compute is 0%; write a share from 0.01% to 100%",
    ),
    (
        {"plugin": {"maxima": {"namespaces": {"a": {"weight": 10}, "b": {"weight": 0}}}}},
        "plugin.maxima.namespaces.b.weight is 0; write a number from 1 to 10000",
    ),
    ({"plugin": {"maxima": {"default": {"compute": "half"}}}}, "'half' does not match pattern"),
    ({"plugin": {"maxima": {"namespaces": {"A_b": {}}}}}, "additional properties 'A_b' not allowed"),
    ({"metrics": {"port": 70000}}, "metrics.port is 70000; write a number from 1 to 65535"),
    ({"metrics": {"serviceMonitor": {"interval": "soon"}}}, "at '/metrics/serviceMonitor/interval'"),
    ({"maxUnavailable": 0}, "maxUnavailable is 0; write a number from 1 to 1000"),
    ({"maxUnavailable": "101%"}, "maxUnavailable is 101%; write a share from 1% to 100%"),
    ({"maxUnavailable": "1.5"}, "at '/maxUnavailable'"),
    ({"terminationGracePeriodSeconds": 0}, "terminationGracePeriodSeconds is 0; write a number from 1 to 300"),
    ({"scheduler": {"config": {"quantum": "2s"}}}, "additional properties 'quantum' not allowed"),
    (
        {"scheduler": {"config": {"scheduling": {"late_factor": 101}}}},
        "scheduler.config.scheduling.late_factor is 101; write a number from 1 to 100",
    ),
    ({"scheduler": {"config": {"scheduling": {"quantum": "2 s"}}}}, "'2 s' does not match pattern"),
    (
        {"scheduler": {"config": {"scheduling": {"credit": "101%"}}}},
        "scheduler.config.scheduling.credit is 101%; write a share from 0% to 100%",
    ),
    (
        {"scheduler": {"config": {"gpus": {"0": {"epsilon": "100%"}}}}},
        "scheduler.config.gpus.0.epsilon is 100%; write a share from 0.01% to 99.99%",
    ),
    ({"scheduler": {"config": {"self_service": {"max_memory": "much"}}}}, "'much' does not match pattern"),
    ({"cards": {"runtimeClass": ""}}, "cards.runtimeClass is empty, but cards.access is `runtime`; name the"),
    ({"cards": {"access": "host"}, "plugin": {"inject": "nvidia-runtime"}}, "set plugin.inject to `mounts`"),
    ({"serviceAccount": {"name": "default"}}, "whose rights every pod of the namespace has"),
]


def render(chart, values):
    """Checks values as an installation does, and returns the text of each template."""
    chart.validate_schema(values)
    texts = chart.render(values, name="gpushare", namespace="gpushare")
    return {Path(path).stem: text for path, text in texts.items()}


def objects(texts):
    """Returns the objects of all templates."""
    names = set(texts) - {"NOTES"}
    assert names == set(TEMPLATES), f"templates {sorted(names)}, and TEMPLATES has {TEMPLATES}"
    return [found for name in TEMPLATES for found in yaml.safe_load_all(texts[name]) if found]


def manifests(chart):
    """Returns the plain manifests by file name."""
    texts = render(chart, {"namespace": {"create": True}})
    parts = [texts[name].strip("\n") for name in TEMPLATES]
    dra = render(chart, {"namespace": {"create": True}, "plugin": {"offer": "dra"}})
    dra = [dra[name].strip("\n") for name in TEMPLATES]
    monitored = render(chart, {"metrics": {"serviceMonitor": {"enabled": True}}})["monitoring"]
    _, monitor = monitored.split("\n---\n")
    return {
        "gpushare.yaml": HEADER + "\n---\n".join(part for part in parts if part) + "\n",
        "gpushare-dra.yaml": HEADER + "\n---\n".join(part for part in dra if part) + "\n",
        "service-monitor.yaml": HEADER + monitor.strip("\n") + "\n",
    }


def check(path, chart, folder):
    findings = [found for found in lint(path, strict=True)["messages"] if found["severity"] > 1]
    assert not findings, f"helm lint: {findings}"

    for name, values in RENDERED.items():
        found = objects(render(chart, values))
        for thing in found:
            if thing["kind"] in FOREIGN:
                continue
            first = SINCE.get(thing["kind"], VERSIONS[0])
            for version in VERSIONS[VERSIONS.index(first) :]:
                validated(thing, version)
        consistent(name, found)
        config = next(thing["data"]["config.toml"] for thing in found if "config.toml" in thing.get("data", {}))
        Path(folder, f"{name}.toml").write_text(config)
        if name == "everything":
            copies(found)

    for values, says in REFUSED:
        try:
            render(chart, values)
        except HelmError as refusal:
            assert says in str(refusal), f"{values} is refused by `{refusal}`, without `{says}`"
        else:
            raise AssertionError(f"{values} is not refused")
    return len(REFUSED)


def validated(thing, version):
    """The published schemas of a version accept an object, and know all its fields."""
    used = validate(thing, version, strict=True)
    assert used == version, f"no schemas of Kubernetes {version}, only of {used}"


def slices(folder):
    """The published schemas accept the slices of the driver."""
    for name, versions in SLICES.items():
        for version in versions:
            validated(json.loads(Path(folder, name).read_text()), version)


def examples():
    """The published schemas accept the objects of the page about claims."""
    page = (Path(__file__).parents[3] / "docs/dra.md").read_text()
    blocks = [block.split("```")[0] for block in page.split("```yaml\n")[1:]]
    found = [it for block in blocks for it in yaml.safe_load_all(block) if isinstance(it, dict) and "kind" in it]
    assert [it["kind"] for it in found] == ["ResourceClaimTemplate", "Pod"], found
    for thing in found:
        for version in ["1.34", "1.35", "1.36", "1.37"]:
            validated(thing, version)


def consistent(name, found):
    """Names by which the objects refer to each other lead somewhere."""
    by_kind = {}
    for thing in found:
        by_kind.setdefault(thing["kind"], []).append(thing)
    (daemons,) = by_kind["DaemonSet"]
    pod = daemons["spec"]["template"]
    labels = pod["metadata"]["labels"].items()
    selectors = [daemons["spec"]["selector"]["matchLabels"]]
    selectors += [service["spec"]["selector"] for service in by_kind["Service"]]
    for selector in selectors:
        assert selector.items() <= labels, f"{name}: {selector} does not select {labels}"
    for monitor in by_kind.get("ServiceMonitor", []):
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        assert all(wanted <= it["metadata"]["labels"].items() for it in by_kind["Service"]), f"{name}: {wanted}"
    for binding in by_kind.get("ClusterRoleBinding", []):
        assert [it["metadata"]["name"] for it in by_kind["ClusterRole"]] == [binding["roleRef"]["name"]]
        assert binding["subjects"][0]["name"] == pod["spec"]["serviceAccountName"], name
    maps = {it["metadata"]["name"] for it in by_kind["ConfigMap"]}
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert volumes["config"]["configMap"]["name"] in maps, name
    mounted = set()
    for container in pod["spec"]["containers"]:
        mounted |= {mount["name"] for mount in container["volumeMounts"]}
        for mount in container["volumeMounts"]:
            host = volumes[mount["name"]].get("hostPath", {}).get("path")
            moved = mount["name"] in ("host", "nvml")
            assert moved or host in (None, mount["mountPath"]), f"{name}: {mount} is elsewhere on the node"
    assert mounted == set(volumes), f"{name}: {mounted ^ set(volumes)}"


def copies(found):
    """The dashboard and the alerts are those of docs/grafana."""
    sources = Path(__file__).parents[3] / "docs/grafana"
    (dashboard,) = [it["data"]["gpushare.json"] for it in found if "gpushare.json" in it.get("data", {})]
    assert json.loads(dashboard) == json.loads((sources / "dashboard.json").read_text())
    (rules,) = [it["spec"] for it in found if it["kind"] == "PrometheusRule"]
    assert rules == yaml.safe_load((sources / "alerts.yaml").read_text())


def main():
    path, act, folder = sys.argv[1:]
    with Chart.load(path) as chart:
        if act == "manifests":
            for name, text in manifests(chart).items():
                Path(folder, name).write_text(text)
            return
        refused = check(path, chart, folder)
        slices(Path(path).parent / "tests/node/golden")
        examples()
        for name, text in manifests(chart).items():
            there = Path(path).parent / "manifests" / name
            same = there.exists() and there.read_text() == text
            assert same, f"{there} is not what the chart makes; run `cargo xtask manifests`"
        print(f"{len(RENDERED)} sets of values in {len(VERSIONS)} versions, {refused} refusals")


main()
