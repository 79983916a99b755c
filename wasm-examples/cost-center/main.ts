// SPDX-License-Identifier: Apache-2.0

// The cost-center plugin labels workloads with the cost center of their namespace.
import { plugin, patch, add, deny, host, token, type AdmissionRequest } from "wasmplane";

const LABEL = "example.com/cost-center";

/** The label of a namespace. Of it the operator grants the labels only. */
function costCenter(namespace: string): string | undefined {
  const { object } = host.objects.get({ apiVersion: "v1", kind: "Namespace", name: namespace, fields: ["metadata.labels"] });
  return object?.metadata?.labels?.[LABEL];
}

function decide({ namespace, object }: AdmissionRequest) {
  const center = namespace && costCenter(namespace);
  if (!center) return deny(`namespace ${namespace} has no label ${LABEL}: ask its owner to set one`);
  const path = `/@podMeta/labels/${token(LABEL)}`;
  if (object["@podMeta"]?.labels?.[LABEL] !== center) return patch(add(path, center));
}

export default plugin({
  name: "cost-center", version: "1.0.0",
  needs: ["objects.get"],
  mutate: {
    match: [{ operations: ["CREATE"], apiGroups: ["", "apps", "batch"], resources: ["pods", "deployments", "statefulsets", "daemonsets", "jobs", "cronjobs"] }],
    fields: ["namespace", "object.@podMeta.labels"],
    decide,
  },
});
