// SPDX-License-Identifier: Apache-2.0

// The conformance guest in TypeScript: that in JavaScript, with its types.
import type { Plugin } from "wasmplane";
import guest from "../javascript/main.js";

enum Kind { Guest = "conformance" }

const typed = { ...guest, name: Kind.Guest } satisfies Plugin;
export default typed as Plugin;
