// SPDX-License-Identifier: Apache-2.0

// The SDK for plugins in JavaScript and TypeScript. index.d.ts says what there is.
import { Allowance, Denial, Failure, runtime } from "./glue.js";

export const plugin = (p) => p;

// ---- Answers ----

export const deny = (message, options) => new Denial(message, options);
export const allow = (reason) => new Allowance(reason);
export function fail(message) { throw new Failure(message); }
export const invalid = (...causes) => ({ allowed: false, message: "", causes });
export const warn = (...warnings) => ({ allowed: true, warnings });
export const wait = (seconds, reason) => ({ decision: "wait", waitSeconds: seconds, reasons: [reason] });

export const patch = (...operations) => ({ allowed: true, patch: operations.flat().filter(Boolean) });
export const add = (path, value) => ({ op: "add", path, value });
export const replace = (path, value) => ({ op: "replace", path, value });
export const remove = (path) => ({ op: "remove", path });
export const move = (from, path) => ({ op: "move", from, path });
export const copy = (from, path) => ({ op: "copy", from, path });
export const test = (path, value) => ({ op: "test", path, value });
export const token = (key) => String(key).replaceAll("~", "~0").replaceAll("/", "~1");

export const fits = (score = 0) => 1 + Math.min(100, Math.max(0, Math.round(score)));
export const unfit = (reason = 0) => 128 + (reason & 63);
export const never = (reason = 0) => 192 + (reason & 63);

// ---- The host ----

export const stringify = (v) => runtime.stringify(v);
export const parse = (text) => runtime.parse(String(text));

export function call(name, input = "") {
  const reply = runtime.call(name, typeof input === "string" ? input : stringify(input), false);
  return reply === "" ? undefined : parse(reply);
}

const json = (name) => (input) => call(name, input);
const nothing = (name) => (input) => void runtime.call(name, stringify(input), false);
const integer = (name) => () => BigInt(runtime.call(name, "", false));
const bytes = (name) => (n) => runtime.call(name, String(n), true);

// abi.yaml: begin host functions
export const host = {
  log: nothing("log"),
  clock: {
    now: integer("clock.now"),
  },
  random: {
    bytes: bytes("random.bytes"),
  },
  objects: {
    get: json("objects.get"),
    list: json("objects.list"),
  },
  access: {
    review: json("access.review"),
  },
  events: {
    record: nothing("events.record"),
  },
  state: {
    get: json("state.get"),
    put: nothing("state.put"),
    list: json("state.list"),
  },
  image: {
    digest: json("image.digest"),
    manifest: json("image.manifest"),
    config: json("image.config"),
  },
  http: {
    fetch: json("http.fetch"),
  },
  dns: {
    lookup: json("dns.lookup"),
  },
  certificate: {
    trusted: json("certificate.trusted"),
  },
};
// abi.yaml: end host functions
