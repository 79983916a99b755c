// SPDX-License-Identifier: Apache-2.0

// The default-resources plugin gives containers that ask for nothing the requests
// and limits that their namespace's annotations name, or else the settings.
import { Plugin, Input, Value, Decision, Obj, ask, fail, parse, rule, token } from "wasmplane";
export { describe, alloc, call, reserve } from "wasmplane";

const PREFIX = "defaults.example.com/";
const FIELDS = ["namespace", "object.spec.containers[*].resources", "object.spec.initContainers[*].resources"];

let settings: Value = Value.absent;

const plugin: Plugin = new Plugin("default-resources", "1.0.0");
plugin.settings(configure).mutate(decide, FIELDS, [rule(["CREATE"], [""], ["pods"])]);

function configure(s: Value): string | null {
  settings = s;
  if (s.get("namespaceAnnotations").isTrue) plugin.needs("objects.get");
  for (let i = 0; i < s.length; i++) {
    const key = s.key(i);
    if (key != "requests" && key != "limits" && key != "namespaceAnnotations") return key + " is no setting: requests, limits and namespaceAnnotations are";
  }
  return null;
}

/** The annotations of a namespace: {"cpu": "100m"} as JSON, in the place of what the settings say. */
function defaults(annotations: Value, kind: string): Value {
  const own = annotations.get(PREFIX + kind);
  if (!own.exists) return settings.get(kind);
  const parsed = parse(own.text);
  if (!parsed.exists) fail("annotation " + PREFIX + kind + " is no JSON object: " + own.text);
  return parsed;
}

function decide(input: Input, out: Decision): void {
  let annotations = Value.absent;
  if (settings.get("namespaceAnnotations").isTrue) {
    const question = new Obj().set("apiVersion", "v1").set("kind", "Namespace").set("name", input.at(0)).set("fields", ["metadata.annotations"]);
    const reply = ask("objects.get", question.toString());
    if (!reply.ok) return fail("cannot read the namespace: " + reply.text);
    annotations = reply.json.path("object.metadata.annotations");
  }
  const requests = defaults(annotations, "requests"), limits = defaults(annotations, "limits");
  fill(input.at(1), "/spec/containers/", requests, limits, out);
  fill(input.at(2), "/spec/initContainers/", requests, limits, out);
}

function fill(containers: Value, path: string, requests: Value, limits: Value, out: Decision): void {
  for (let i = 0; i < containers.length; i++) {
    const has = containers.at(i), at = path + i.toString() + "/resources/";
    for (let r = 0; r < requests.length; r++) set(has, requests.key(r), at + "requests/", requests.entry(r).text, out);
    for (let r = 0; r < limits.length; r++) set(has, limits.key(r), at + "limits/", limits.entry(r).text, out);
  }
}

/** A container that says anything about a resource is left as it is: a default limit could be below its own request. */
function set(has: Value, resource: string, at: string, amount: string, out: Decision): void {
  if (!has.get("requests").get(resource).exists && !has.get("limits").get(resource).exists) out.add(at + token(resource), amount);
}
