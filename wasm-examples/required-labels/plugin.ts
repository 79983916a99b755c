// SPDX-License-Identifier: Apache-2.0

// The required-labels plugin refuses objects that lack labels, or whose labels
// have other values than are allowed.
import { Plugin, Input, Value, Decision, rule } from "wasmplane";
export { describe, alloc, call, reserve } from "wasmplane";

let labels: Value = Value.absent; // a list of {key, values}

new Plugin("required-labels", "1.0.0")
  .settings(configure)
  .validate(decide, ["object.metadata.labels", "object.kind"], [rule(["CREATE", "UPDATE"], [], ["*"])]);

function configure(settings: Value): string | null {
  labels = settings.get("labels");
  for (let i = 0; i < labels.length; i++) {
    if (labels.at(i).get("key").length == 0) return "each of labels needs a key";
  }
  return labels.length > 0 ? null : "labels are missing, such as [{key: team, values: [red, blue]}]";
}

function decide(input: Input, out: Decision): void {
  for (let i = 0; i < labels.length; i++) {
    const key = labels.at(i).get("key").text, allowed = labels.at(i).get("values");
    const value = input.at(0).get(key);
    if (!value.exists) {
      out.denyField("metadata.labels", "a " + input.at(1).text + " needs the label " + key);
    } else if (allowed.length > 0 && !allowed.has(value.text)) {
      out.denyField("metadata.labels", "the label " + key + " is " + value.text + ": expected one of " + allowed.strings().join(", "));
    }
  }
}
