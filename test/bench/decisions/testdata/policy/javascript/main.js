// The image-policy plugin: see the package's documentation. It reads what it asked for.
import { plugin, deny, patch, add } from "wasmplane";

const fields = [
  "object.spec.containers[*].image",
  "object.spec.initContainers[*].image",
  "object.spec.containers[*].securityContext.privileged",
  "object.spec.initContainers[*].securityContext.privileged",
];
const match = [{ operations: ["CREATE"], apiGroups: [""], resources: ["pods"] }];

export default plugin({
  name: "image-policy", version: "1.0.0",
  validate: { match, fields, decide: ({ object }) => judge(object.spec) },
  mutate: {
    match, fields: [...fields, "object.metadata.labels"],
    decide({ object }) {
      const refusal = judge(object.spec);
      if (refusal) return refusal;
      if (!object.metadata.labels?.checked) return patch(add("/metadata/labels/checked", "yes"));
    },
  },
});

function judge({ containers = [], initContainers = [] }) {
  for (const list of [containers, initContainers]) {
    for (const { image, securityContext } of list) {
      if (!pinned(image)) return deny(`image ${image} has no fixed tag`);
      if (securityContext?.privileged) return deny("a container is privileged");
    }
  }
}

function pinned(image) {
  const name = image.slice(image.lastIndexOf("/") + 1);
  return name.includes("@") || (name.includes(":") && !name.endsWith(":latest"));
}
