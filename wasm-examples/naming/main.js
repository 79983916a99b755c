// SPDX-License-Identifier: Apache-2.0

// The naming plugin refuses objects whose name does not follow its kind's rule.
import { plugin, deny } from "wasmplane";

let rules = new Map(); // by kind

export default plugin({
  name: "naming", version: "1.0.0",
  settings({ rules: given = {} }) {
    rules = new Map();
    for (const [kind, pattern] of Object.entries(given)) {
      try {
        rules.set(kind, new RegExp(`^(?:${pattern})$`, "u"));
      } catch (e) {
        return `rules.${kind} is no regular expression: ${e.message}`;
      }
    }
    if (!rules.size) return "rules are missing, such as {Service: '[a-z]+-(api|web)'}";
  },
  validate: {
    match: [{ operations: ["CREATE"], resources: ["*"] }],
    fields: ["object.kind", "object.metadata.name", "object.metadata.generateName"],
    decide({ object: { kind, metadata: { name, generateName } } }) {
      const rule = rules.get(kind);
      if (!rule || generateName || rule.test(name)) return;
      return deny(`${name} is no name of a ${kind}: expected ${rule.source.slice(4, -2)}`, { field: "metadata.name" });
    },
  },
});
