// The image-policy plugin: see the package's documentation. It reads what it asked for.
import { Plugin, Input, Decision, Value, rule } from "wasmplane";
export { describe, alloc, call, reserve } from "wasmplane";

const FIELDS = [
  "object.spec.containers[*].image",
  "object.spec.initContainers[*].image",
  "object.spec.containers[*].securityContext.privileged",
  "object.spec.initContainers[*].securityContext.privileged",
];
const PODS = [rule(["CREATE"], [""], ["pods"])];

new Plugin("image-policy", "1.0.0")
  .validate(validate, FIELDS, PODS)
  .mutate(mutate, FIELDS.concat(["object.metadata.labels"]), PODS);

function validate(input: Input, out: Decision): void {
  judge(input, out);
}

function mutate(input: Input, out: Decision): void {
  if (judge(input, out) && !input.at(4).get("checked").exists) out.add("/metadata/labels/checked", "yes");
}

function judge(input: Input, out: Decision): bool {
  for (let f = 0; f < 2; f++) {
    for (let i = 0, images = input.at(f); i < images.length; i++) {
      if (!pinned(images.at(i))) {
        out.deny("image " + images.at(i).text + " has no fixed tag");
        return false;
      }
    }
  }
  for (let f = 2; f < 4; f++) {
    for (let i = 0, rights = input.at(f); i < rights.length; i++) {
      if (rights.at(i).isTrue) {
        out.deny("a container is privileged");
        return false;
      }
    }
  }
  return true;
}

function pinned(image: Value): bool {
  const name = image.findLast(0x2f) + 1; // behind the last slash
  return image.find(0x40, name) >= 0 || (image.find(0x3a, name) >= 0 && !image.endsWith(":latest"));
}
