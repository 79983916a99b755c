// SPDX-License-Identifier: Apache-2.0

// A plugin of the worlds of sdk/wit: it validates, judges nodes and reconciles.
const manifest = {
  abi: 1, name: "team", version: "1.0.0",
  hooks: [
    { op: 2, point: "admission.validate", fields: ["object.metadata.labels.owner"],
      match: [{ operations: ["CREATE"], apiGroups: [""], apiVersions: ["v1"], resources: ["pods"] }] },
    { op: 6, point: "scheduling.table", columns: [{ path: "allocatable.milliCPU", type: "int" }, { path: "requested.milliCPU", type: "int" }],
      pod: [{ path: "requests.milliCPU", type: "int" }], reasons: ["node(s) were too full"] },
    { op: 7, point: "reconcile", primary: { group: "", version: "v1", resource: "namespaces", kind: "Namespace" },
      owned: [{ group: "", version: "v1", resource: "configmaps", kind: "ConfigMap" }] },
  ],
};

export function describe() {
  return JSON.stringify(manifest);
}

export function validate(document) {
  if (JSON.parse(document).object.metadata.labels?.owner) return { allowed: true, warnings: [], annotations: [] };
  return { allowed: false, message: "name an owner", field: "metadata.labels.owner", warnings: [], annotations: [] };
}

export function table(pod, [free, used]) {
  return Uint8Array.from(free, (_, i) => {
    const all = Number(free[i]), taken = Number(used[i]);
    return taken + Number(pod[0]) > all ? 0 : 101 - Math.floor((100 * taken) / Math.max(1, all));
  });
}

export function reconcile(document) {
  const { primary } = JSON.parse(document);
  if (!primary) return undefined;
  const { name } = primary.metadata;
  return JSON.stringify({ apply: [{ apiVersion: "v1", kind: "ConfigMap", metadata: { name: "team", namespace: name }, data: { team: name } }] });
}
