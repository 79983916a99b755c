// SPDX-License-Identifier: Apache-2.0

// The glue between a plugin and its runtime (runtime/runtime.c): it registers the functions of the plugin by
// operation, answers the manifest, and puts into an answer's form what the helpers of index.js have made.

/** What the runtime offers. */
export const runtime = globalThis.__wasmplane;
delete globalThis.__wasmplane;

// What is printed goes to the log of the host.
const shown = (v) => {
  if (typeof v === "string") return v;
  if (v instanceof Error) return `${v}\n${v.stack ?? ""}`.trimEnd();
  try {
    return JSON.stringify(v, (_, x) => (typeof x === "bigint" ? x.toString() : x)) ?? String(v);
  } catch {
    return String(v);
  }
};
const printer = (stream) => (...values) => runtime.print(stream, values.map(shown).join(" "));
globalThis.console = { log: printer(1), info: printer(1), debug: printer(1), warn: printer(2), error: printer(2), trace: printer(2) };

/** Refuses, at whichever point; see deny of index.js. */
export class Denial {
  constructor(message, options = {}) {
    this.message = String(message);
    this.options = options;
  }
}

/** Lets through, at whichever point; see allow of index.js. */
export class Allowance {
  constructor(reason) { this.reason = reason; }
}

/** Fails, with these words and no others. */
export class Failure extends Error {
  constructor(message) {
    super(message);
    this.name = "Failure";
    this.answer = this.message;
  }
}

// The forms of refusals, by the kind of answer.
const gate = { deny: (d) => ({ allowed: false, reasons: [d.message] }) };
const admission = { deny: (d) => ({ allowed: false, message: d.message, field: d.options.field, code: d.options.code, reason: d.options.reason }) };
const selection = { deny: (d) => ({ fits: false, unresolvable: d.options.forGood || undefined, reasons: [d.message] }) };
const number = (least, most) => ({ value: (v) => Math.min(most, Math.max(least, Math.round(Number(v)))) });
const score = number(0, 100);
const none = { value: () => undefined };
const raw = {};
const empty = { apply: [], delete: [], conditions: [], events: [], requeueSeconds: 0 };
const plan = { nothing: empty, value: (p) => ({ ...empty, ...p }) };

const kinds = {
  mutate: admission, validate: admission, convert: admission, validateCustom: admission,
  authorize: { deny: (d) => ({ decision: "deny", reason: d.message }), allow: (a) => ({ decision: "allow", reason: a.reason }) },
  preEnqueue: gate, reserve: gate, preBind: gate, bind: gate,
  preFilter: selection, filter: selection,
  postFilter: { deny: (d) => ({ reasons: [d.message] }) },
  permit: { deny: (d) => ({ decision: "deny", reasons: [d.message] }) },
  queueSort: number(-Number.MAX_SAFE_INTEGER, Number.MAX_SAFE_INTEGER),
  score, normalize: { value: (list) => list.map(score.value) },
  preScore: raw, reconcile: plan, table: raw,
  unreserve: none, postBind: none,
  nodeAdmission: { deny: (d) => ({ admitted: false, reason: d.options.reason ?? "Forbidden", message: d.message }) },
};

function formed(kind, name, answer) {
  if (answer instanceof Denial) {
    if (!kind.deny) throw new TypeError(`deny is no answer of ${name}`);
    return kind.deny(answer);
  }
  if (answer instanceof Allowance) return kind.allow?.(answer);
  if (answer === undefined || answer === null || answer === true) return kind.nothing;
  if (answer === false) throw new TypeError(`${name} answered false: answer deny("why"), so that users learn what is wrong`);
  return kind.value ? kind.value(answer) : answer;
}

// abi.yaml: begin operations
const ABI = 1;

// The operations and points, by hook.
const operations = {
  authorize: [3, "authorization"],
  convert: [9, "customresource.convert"],
  mutate: [1, "admission.mutate"],
  validateCustom: [10, "customresource.validate"],
  validate: [2, "admission.validate"],
  reconcile: [7, "reconcile"],
  preEnqueue: [11, "scheduling.preEnqueue"],
  queueSort: [12, "scheduling.queueSort"],
  preFilter: [13, "scheduling.preFilter"],
  filter: [4, "scheduling.filter"],
  table: [6, "scheduling.table"],
  postFilter: [14, "scheduling.postFilter"],
  preScore: [15, "scheduling.preScore"],
  score: [5, "scheduling.score"],
  normalize: [16, "scheduling.normalize"],
  reserve: [17, "scheduling.reserve"],
  unreserve: [18, "scheduling.unreserve"],
  permit: [19, "scheduling.permit"],
  preBind: [20, "scheduling.preBind"],
  bind: [21, "scheduling.bind"],
  postBind: [22, "scheduling.postBind"],
  nodeAdmission: [8, "nodeadmission"],
};
// abi.yaml: end operations

const said = ["match", "fields", "encoding", "alternatives", "pure", "sideEffects", "events", "primary", "owned", "reasons"];
const known = [...said, "decide", "columns", "pod"];
const FLAT = 1, JSON_TEXT = 2, TABLE = 3;

function expect(ok, what) { if (!ok) throw new TypeError(what); }

const column = (c) => (typeof c === "string" ? { path: c, type: "int" } : { type: "int", ...c });

/** Registers one hook, and answers its part of the manifest. */
function register(name, given) {
  const hook = typeof given === "function" ? { decide: given } : given;
  const [op, point] = operations[name];
  expect(typeof hook?.decide === "function", `${name} has no function decide: ${name}: {fields: [...], decide(input) {...}}`);
  for (const key of Object.keys(hook)) expect(known.includes(key), `${name} has ${key}: expected one of ${known.join(", ")}`);
  const entry = { op, point };
  for (const key of said) if (hook[key] !== undefined) entry[key] = hook[key];
  const { decide } = hook, kind = kinds[name];
  if (name === "table") {
    entry.columns = (hook.columns ?? []).map(column);
    entry.pod = (hook.pod ?? []).map(column);
    expect(entry.columns.length, "table has no columns: table: {columns: [\"pods\"], decide(pod, node) {...}}");
    runtime.table(entry.columns.length, entry.pod.length);
    runtime.hook(op, decide.bind(hook), TABLE);
    return entry;
  }
  if (name === "normalize" && entry.fields?.length && !entry.fields.includes("scores")) entry.fields = [...entry.fields, "scores"];
  entry.encoding = entry.fields?.length ? "json" : "flat";
  runtime.hook(op, (input) => {
    const answer = hook.decide(input);
    return answer instanceof Promise ? answer.then((a) => formed(kind, name, a)) : formed(kind, name, answer);
  }, entry.encoding === "json" ? JSON_TEXT : FLAT);
  return entry;
}

/** Makes a plugin answer. */
export function start(plugin) {
  expect(typeof plugin === "object" && plugin !== null, "the default export is no plugin: export default plugin({name: ..., validate: {...}})");
  const names = Object.keys(operations);
  const manifest = {};
  const load = (p) => {
    for (const key of Object.keys(p)) {
      expect(operations[key] || ["name", "version", "needs", "settings", "settingsSchema", "groups"].includes(key), `a plugin has no ${key}: expected name, version, needs, settings, settingsSchema, groups or one of ${names.join(", ")}`);
    }
    expect(typeof p.name === "string", "the plugin has no name: plugin({name: \"my-plugin\", ...})");
    Object.assign(manifest, { abi: ABI, name: p.name, version: p.version ?? "", settings: Boolean(p.settings), needs: p.needs ?? [], groups: p.groups, settingsSchema: p.settingsSchema });
    manifest.hooks = names.filter((n) => p[n]).map((n) => register(n, p[n]));
    expect(manifest.hooks.length, `the plugin has no hook: expected one of ${names.join(", ")}`);
  };
  load(plugin);
  runtime.describe(() => manifest);
  if (!plugin.settings) return;
  runtime.hook(0, (settings) => {
    const answer = plugin.settings(settings);
    if (typeof answer === "string") throw new Failure(answer);
    if (answer) load({ ...plugin, ...answer });
  }, JSON_TEXT);
}
