// SPDX-License-Identifier: Apache-2.0

// The conformance guest in JavaScript: it does what the guests in other languages do.
import {
  plugin, deny, allow, fail, invalid, wait, patch, add, replace, remove, move, token, fits, unfit, never, call, stringify,
} from "wasmplane";

let settings = {};

const told = ({ nodeName }) => { if (nodeName === "broken") fail("it broke"); };

export default plugin({
  name: "conformance", version: "1.2.3",
  settingsSchema: { required: ["key"] },
  settings(s) {
    settings = s;
    return s.refuse;
  },
  groups: { of: "pod.metadata.namespace", names: { red: "a", crimson: "a" }, other: 'b "c"' },
  mutate: {
    match: [{ operations: ["CREATE"], apiGroups: [""], apiVersions: ["v1"], resources: ["pods"] }],
    decide(document) {
      if (document?.whole) return { allowed: true, object: { kind: "Pod", was: document.whole } };
      const replicas = document?.spec?.replicas ?? 0;
      return {
        ...patch(
          add("/echo", document),
          add("/metadata/labels/" + token(settings.key), stringify(settings)),
          replace("/spec/replicas", typeof replicas === "bigint" ? replicas + 1n : replicas + 1),
          remove("/spec/paused"),
        ),
        warnings: ['careful "now"\n'], auditAnnotations: { key: settings.key },
      };
    },
  },
  validate: {
    fields: ["object.metadata.name", "object.metadata.labels", "operation"],
    sideEffects: "NoneOnDryRun",
    alternatives: { "@size": { Deployment: "spec.replicas", "*": "spec.size" } },
    decide(request) {
      if (request?.operation === "CONNECT") fail("cannot tell");
      if (request?.operation === "DELETE") return deny("in use", { reason: "Conflict" });
      if (request?.operation === "CREATE") return deny("not " + request.object.metadata.name, { field: "metadata.name", code: 422 });
    },
  },
  convert: {
    match: [{ apiGroups: ["example.com"], resources: ["endpoints"] }],
    fields: ["object.spec.hostPort", "desiredAPIVersion"],
    decide({ object, desiredAPIVersion }) {
      if (!object.spec?.hostPort) return deny("no hostPort");
      return patch(move("/spec/hostPort", "/spec/address"), add("/spec/as", desiredAPIVersion));
    },
  },
  validateCustom: {
    fields: ["object.spec.port"],
    decide({ object }) {
      if (object.spec.port > 9) return invalid({ field: "spec.port", message: 'too "high"' }, { field: "spec.name", message: "missing" });
    },
  },
  authorize: {
    pure: true,
    fields: ["user", "resourceAttributes.namespace"],
    decide({ user, resourceAttributes }) {
      if (user === "root") return allow("root may");
      if (resourceAttributes?.namespace === "closed") return deny("closed to " + user);
    },
  },
  preEnqueue: {
    fields: ["pod.metadata.labels"], events: ["podChanged"],
    async decide({ pod }) {
      const gate = await Promise.resolve(pod.metadata.labels?.gate);
      if (gate) return deny("waits for " + gate);
    },
  },
  queueSort: { fields: ["pod.spec.priority"], decide: ({ pod }) => 10 * pod.spec.priority },
  preFilter: {
    fields: ["pod.metadata.name", "nodes"],
    decide({ pod, nodes }) {
      switch (pod.metadata.name) {
        case "none": return deny("no node for none");
        case "never": return deny("never runs", { forGood: true });
        case "skip": return { skip: true };
        case "state": return { state: { zone: "a" } };
        case "narrow": return { nodes: [nodes[0]] };
        case "nowhere": return { nodes: [] };
      }
    },
  },
  filter: {
    fields: ["node.metadata.name"], events: ["nodeAdded", "podRemoved"],
    decide({ node }) {
      if (node.metadata.name.startsWith("worst")) return deny("node(s) were worst", { forGood: true });
      if (node.metadata.name.startsWith("bad")) return deny("node(s) were bad");
    },
  },
  postFilter: {
    fields: ["pod.metadata.name", "failed[*].node"], pure: true,
    decide({ pod, failed }) {
      if (pod.metadata.name === "owner") {
        return { reclaim: [{ group: "a", keep: { milliCPU: 64000, scalar: { "example.com/gpu": 8 } } }, { group: 'b "c"', below: -100 }] };
      }
      if (pod.metadata.name !== "urgent") return deny("nothing to evict");
      return { nominated: failed[0].node, evict: [{ namespace: "default", name: "victim", uid: "u1" }] };
    },
  },
  preScore: { fields: ["nodes"], decide: ({ nodes }) => (nodes.length === 1 ? { skip: true } : { state: nodes.length }) },
  normalize: { fields: ["state"], decide: ({ scores, state }) => scores.map((s) => s * state) },
  reserve: { fields: ["nodeName"], decide: ({ nodeName }) => (nodeName === "full" ? deny("node full is full") : undefined) },
  unreserve: { fields: ["nodeName"], decide: told },
  permit: {
    fields: ["nodeName", "waitedSeconds"],
    decide({ nodeName, waitedSeconds }) {
      if (nodeName === "hold" && waitedSeconds < 5) return wait(2.5, "hold on");
      if (nodeName === "no") return deny("no");
    },
  },
  preBind: { fields: ["nodeName"], decide: ({ nodeName }) => (nodeName === "unready" ? deny("not ready") : undefined) },
  bind: {
    fields: ["nodeName"],
    decide({ nodeName }) {
      if (nodeName === "plain") return { annotations: {} };
      if (nodeName === "noted") return { annotations: { "example.com/by": 'me "x"' } };
      if (nodeName === "refused") return deny("not there");
    },
  },
  postBind: { fields: ["nodeName"], decide: told },
  score: {
    fields: ["pods"],
    decide({ pods }) {
      if (pods === 7) return call("test.echo", { n: 3000 }).text.length / 100;
      if (pods !== 8) return 3 * pods;
      try {
        return call("test.none");
      } catch {
        return 99;
      }
    },
  },
  table: {
    columns: ["pods", { path: "allocatable.pods", type: "int" }], pod: ["requests.milliCPU"], reasons: ["full", "never"],
    decide([wanted], [pods, allocatable]) {
      const room = allocatable - pods;
      if (room <= 0) return never(1);
      return wanted > room ? unfit(0) : fits(room);
    },
  },
  reconcile: {
    primary: { group: "apps", version: "v1", resource: "deployments", kind: "Deployment", selector: "app=web" },
    owned: [{ version: "v1", resource: "services", kind: "Service" }],
    decide({ namespace, name, primary }) {
      if (primary === null) return { delete: [{ apiVersion: "v1", kind: "Service", namespace, name }] };
      if (name === "db") {
        return {
          patch: [{
            apiVersion: "apps/v1", kind: "Deployment", name: "db", subresource: "scale",
            patch: [{ op: "test", path: "/spec/replicas", value: 3 }, replace("/spec/replicas", 0)],
          }],
          delete: [{ apiVersion: "v1", kind: "Service", name: "old", uid: "u-1", resourceVersion: "7", propagationPolicy: "Foreground" }],
        };
      }
      if (name === "broken") fail(`broken "${name}"`);
      return {
        apply: [{ apiVersion: "v1", kind: "Service", metadata: { name }, spec: primary.spec }],
        status: { seen: true },
        conditions: [{ type: "Ready", status: "True", reason: "Made", message: "made it" }],
        events: [{ type: "Normal", reason: "Made", message: "made " + name }],
        requeueSeconds: 30,
      };
    },
  },
  nodeAdmission: {
    fields: ["pod.spec.hostNetwork"],
    decide: ({ pod }) => (pod.spec.hostNetwork ? deny("no", { reason: "HostNetwork" }) : undefined),
  },
});
