# SPDX-License-Identifier: Apache-2.0
"""A plugin of the worlds of sdk/wit: it validates, judges nodes and reconciles."""
import json

import wit_world
from wit_world.imports.types import Decision

MANIFEST = {
    "abi": 1, "name": "team", "version": "1.0.0",
    "hooks": [
        {"op": 2, "point": "admission.validate", "fields": ["object.metadata.labels.owner"],
         "match": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]},
        {"op": 6, "point": "scheduling.table", "columns": [{"path": "allocatable.milliCPU", "type": "int"}, {"path": "requested.milliCPU", "type": "int"}],
         "pod": [{"path": "requests.milliCPU", "type": "int"}], "reasons": ["node(s) were too full"]},
        {"op": 7, "point": "reconcile", "primary": {"group": "", "version": "v1", "resource": "namespaces", "kind": "Namespace"},
         "owned": [{"group": "", "version": "v1", "resource": "configmaps", "kind": "ConfigMap"}]},
    ],
}


class WitWorld(wit_world.WitWorld):
    def describe(self):
        return json.dumps(MANIFEST)

    def validate(self, document):
        labels = json.loads(document)["object"]["metadata"].get("labels", {})
        if labels.get("owner"):
            return Decision(True, None, None, None, None, None, [], [])
        return Decision(False, "name an owner", "metadata.labels.owner", None, None, None, [], [])

    def table(self, pod, columns):
        return bytes(0 if used + pod[0] > free else 101 - 100 * used // max(1, free) for free, used in zip(*columns))

    def reconcile(self, document):
        primary = json.loads(document)["primary"]
        if primary is None:
            return None
        name = primary["metadata"]["name"]
        return json.dumps({"apply": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "team", "namespace": name}, "data": {"team": name}}]})
