// SPDX-License-Identifier: Apache-2.0

/**
 * The SDK for wasmplane plugins in JavaScript and TypeScript.
 *
 *     import { plugin, deny } from "wasmplane";
 *
 *     export default plugin({
 *       name: "my-plugin",
 *       validate: {
 *         match: [{ operations: ["CREATE"], apiGroups: [""], resources: ["pods"] }],
 *         fields: ["object.metadata.labels"],
 *         decide({ object }) {
 *           if (!object.metadata.labels?.owner) return deny("name an owner", { field: "metadata.labels" });
 *         },
 *       },
 *     });
 *
 * A hook's function gets the document of its point, and answers nothing to let it pass. With `fields` the
 * document holds these and what they stand in, everything in its place: that is what makes a call cheap. Integers
 * are numbers; those past 2^53 are BigInts.
 *
 * Each call begins with the module's variables as some earlier call left them: what they keep is a cache. There
 * are no timers, files or network; `async` functions work, for what they wait for must be there already.
 */

/** An object of Kubernetes; of its spec, status and so on nothing is known here. */
export interface KubeObject {
  apiVersion?: string;
  kind?: string;
  metadata: Metadata;
  [key: string]: any;
}

export interface Metadata {
  name?: string;
  generateName?: string;
  namespace?: string;
  uid?: string;
  resourceVersion?: string;
  generation?: number;
  creationTimestamp?: string;
  deletionTimestamp?: string;
  labels?: Record<string, string>;
  annotations?: Record<string, string>;
  ownerReferences?: { apiVersion: string; kind: string; name: string; uid: string; controller?: boolean }[];
  finalizers?: string[];
  [key: string]: any;
}

// ---- Documents ----

export interface GroupVersionKind { group: string; version: string; kind: string }
export interface GroupVersionResource { group: string; version: string; resource: string }

/** The request of an AdmissionReview. A DELETE has no object, a CREATE no oldObject. */
export interface AdmissionRequest<T = KubeObject> {
  uid: string;
  kind: GroupVersionKind;
  resource: GroupVersionResource;
  subResource?: string;
  name?: string;
  namespace?: string;
  operation: "CREATE" | "UPDATE" | "DELETE" | "CONNECT";
  userInfo: { username: string; uid?: string; groups?: string[]; extra?: Record<string, string[]> };
  object: T;
  oldObject: T;
  dryRun?: boolean;
  options?: any;
}

export interface ConversionRequest<T = KubeObject> {
  object: T;
  desiredAPIVersion: string;
  kind: GroupVersionKind;
  name: string;
  namespace?: string;
}

export interface Requirement { key: string; operator: string; values?: string[] }

/** The spec of a SubjectAccessReview. */
export interface AccessRequest {
  user: string;
  groups?: string[];
  uid?: string;
  extra?: Record<string, string[]>;
  resourceAttributes?: {
    namespace?: string; verb: string; group?: string; version?: string; resource: string; subresource?: string; name?: string;
    fieldSelector?: { requirements: Requirement[] }; labelSelector?: { requirements: Requirement[] };
  };
  nonResourceAttributes?: { path: string; verb: string };
}

export interface Amounts { milliCPU?: number; memory?: number; ephemeralStorage?: number; pods?: number; scalar?: Record<string, number> }

/** What a group of pods has. */
export interface Usage { requested: Amounts; leaving: Amounts; promised: Amounts }
/** What preFilter, queueSort and postFilter of a plugin with groups may read besides, by name in fields. */
export interface Grouped {
  /** The name of the pod's group. */
  group?: string;
  usage?: Usage;
  /** All groups by name; not for queueSort. */
  groups?: Record<string, Usage>;
  /** The pods that are in no group. */
  others?: Usage;
  /** What all nodes have to give. */
  total?: Amounts;
}

/** What steps of scheduling are asked about; which parts a point has, sdk/spec/README.md says. */
export interface SchedulingRequest {
  pod: KubeObject;
  requests: Amounts;
  nonZero: Amounts;
  state?: any;
}
export interface NodeRequest extends SchedulingRequest { node: KubeObject; allocatable: Amounts; requested: Amounts; pods: number }
export interface NodesRequest extends SchedulingRequest { nodes: string[] }
export interface ChosenRequest extends SchedulingRequest { nodeName: string }
export interface FailedRequest extends SchedulingRequest, Grouped { failed: { node: string; plugin: string; reasons: string[]; unresolvable?: boolean }[] }
export interface ScoresRequest extends NodesRequest { scores: number[] }
export interface ReconcileRequest<T = KubeObject> { namespace: string; name: string; primary: T | null; owned: KubeObject[]; now: string }
export interface NodeAdmissionRequest { pod: KubeObject; node: KubeObject }

// ---- Answers ----

/** What deny makes. */
export interface Denial { readonly message: string }
/** What allow makes. */
export interface Allowance { readonly reason?: string }

/** Refuses, at every point that can: a request, a pod, a node. */
export function deny(message: string, options?: {
  /** The field that is wrong: "spec.containers[0].image". */
  field?: string;
  /** The HTTP status of the refusal; 403 where nothing is said. */
  code?: number;
  /** The refusal's metav1.StatusReason; at nodeAdmission a word in CamelCase. */
  reason?: string;
  /** At filter and preFilter: whatever pods leave. */
  forGood?: boolean;
}): Denial;

/** Lets through. It is needed where saying nothing leaves the decision to others: at authorize. */
export function allow(reason?: string): Allowance;

/** Fails: the failure policy of the plugin's entry decides. Any other exception does the same, with its place. */
export function fail(message: string): never;

export interface Cause { field: string; message: string; reason?: string }
/** Refuses a custom resource because of several fields at once. */
export function invalid(...causes: Cause[]): AdmissionAnswer;

/** Lets a request through, and shows warnings to the user. */
export function warn(...warnings: string[]): AdmissionAnswer;

export interface PatchOperation { op: string; path: string; from?: string; value?: unknown }
/** Changes the object; what is false or undefined among the operations is left out. */
export function patch(...operations: (PatchOperation | PatchOperation[] | false | undefined | null)[]): AdmissionAnswer;
/** Puts a value at a path ("/metadata/labels/team"). What is missing on the way is made; "/spec/containers/[name=web]" finds an item. */
export function add(path: string, value: unknown): PatchOperation;
export function replace(path: string, value: unknown): PatchOperation;
export function remove(path: string): PatchOperation;
export function move(from: string, path: string): PatchOperation;
export function copy(from: string, path: string): PatchOperation;
/** Makes the whole patch fail where another value is there. */
export function test(path: string, value: unknown): PatchOperation;
/** Writes a key as a part of a path: slashes and tildes are escaped. */
export function token(key: string): string;

export interface AdmissionAnswer {
  allowed?: boolean;
  message?: string;
  field?: string;
  code?: number;
  reason?: string;
  causes?: Cause[];
  patch?: PatchOperation[];
  /** The whole changed object; only of hooks without fields. */
  object?: unknown;
  warnings?: string[];
  auditAnnotations?: Record<string, string>;
}

/** Those pods of a group that may make room: of a lower priority, or without a place in what the group keeps. The most important
 * ones keep theirs, and of a resource that is not named, all. The host finds out which of them have to go, whole gangs; the pods of
 * a group that is named first rather stay. It takes the place of a nominated node, for plugins with groups. */
export type Reclaim = { group: string; keep: Amounts } | { group: string; below: number };

/** Holds a pod and its place; the hook is asked again within so many seconds, for 15 minutes at most. */
export function wait(seconds: number, reason: string): { decision: "wait"; waitSeconds: number; reasons: string[] };

export interface Target { apiVersion: string; kind: string; name: string; namespace?: string; uid?: string; subresource?: string }
/** An object to delete. In another state than resourceVersion it is not, and the host calls again. */
export interface Deletion extends Target { resourceVersion?: string; propagationPolicy?: "Background" | "Foreground" | "Orphan" }
export interface Plan {
  apply?: { apiVersion: string; kind: string; metadata: { name: string; [key: string]: unknown }; [key: string]: unknown }[];
  patch?: (Target & { patch: PatchOperation[] })[];
  delete?: Deletion[];
  status?: unknown;
  conditions?: { type: string; status: "True" | "False" | "Unknown"; reason: string; message?: string }[];
  events?: { type: "Normal" | "Warning"; reason: string; message: string }[];
  requeueSeconds?: number;
}

/** A node fits, with a score of 0 to 100. */
export function fits(score?: number): number;
/** A node does not fit now, for a reason by its index. */
export function unfit(reason?: number): number;
/** The same, whatever pods leave the node. */
export function never(reason?: number): number;

// ---- Hooks ----

/** Which requests an admission hook wants to see; what is left out matches everything. */
export interface Rule { operations?: string[]; apiGroups?: string[]; apiVersions?: string[]; resources?: string[] }

type Nothing = void | null | undefined;
/** What a hook may answer: nothing, its answer, or a promise of it. */
export type Answer<A> = A | Nothing | true | Promise<A | Nothing | true>;

export interface Hook<Request, A> {
  /** Paths of what the hook reads: "object.spec.containers[*].image". None: the whole document. */
  fields?: string[];
  decide(request: Request): Answer<A>;
}

export interface AdmissionHook<Request> extends Hook<Request, AdmissionAnswer | Denial | Allowance> {
  match?: Rule[];
  /** Names for places that depend on the kind of object: {"@replicas": {Deployment: "spec.replicas", "*": "spec.size"}}. */
  alternatives?: Record<string, Record<string, string>>;
  /** What a call changes besides answering, by host functions. */
  sideEffects?: "None" | "NoneOnDryRun" | "Some";
}

// abi.yaml: begin events
/** What can happen in the cluster and make a pod worth another try. */
export type Event =
  /** A node came. */
  | "nodeAdded"
  /** A node has more to give. */
  | "nodeAllocatableGrew"
  /** A node's labels changed. */
  | "nodeLabelsChanged"
  /** A node's taints changed. */
  | "nodeTaintsChanged"
  /** A pod has gone. */
  | "podRemoved"
  /** A pod was bound. */
  | "podBound"
  /** Volumes, claims or classes changed. */
  | "volumesChanged"
  /** The pod itself changed. */
  | "podChanged"
  /** A node was deleted. */
  | "nodeRemoved"
  ;
// abi.yaml: end events

/** A step of scheduling. events: what may change its mind about a pod that it refused; none: any of them. pure, of preFilter, filter
 * and postFilter: the answer depends on the fields and the settings only, so that one pod speaks for others like it. */
export interface Step<Request, A> extends Hook<Request, A> { events?: Event[]; pure?: boolean }

// abi.yaml: begin columns
/** What a column of the node table holds. */
export type ColumnType =
  /** An integer, or a quantity rounded up to units. */
  | "int"
  /** A quantity or number in thousandths. */
  | "milli"
  /** The number of a string, the same for equal strings; 0 = absent. */
  | "string"
  /** 1 where the value is true or, with Equals, is that string; else 0. */
  | "bool"
  ;
// abi.yaml: end columns

/** A column of the node table; a string is the path of a column of integers. */
export type Column = string | { path: string; type?: ColumnType; equals?: string };

export interface Table {
  columns: Column[];
  pod?: Column[];
  reasons?: string[];
  events?: Event[];
  /** Judges a node by its cells, in the order of the columns, and those of the pod: fits, unfit or never. */
  decide(pod: number[], node: number[]): number;
}

export interface Watch { group?: string; version: string; resource: string; kind: string; selector?: string }

type Nominated = { nominated: string; evict?: { namespace: string; name: string; uid?: string }[] };
type Selected = { nodes?: string[]; skip?: boolean; state?: unknown };

/** The hooks, by name. */
interface Decisions {
  authorize: Hook<AccessRequest, Denial | Allowance> & { pure?: boolean };
  convert: AdmissionHook<ConversionRequest>;
  mutate: AdmissionHook<AdmissionRequest>;
  validateCustom: AdmissionHook<AdmissionRequest>;
  validate: AdmissionHook<AdmissionRequest>;
  reconcile: Hook<ReconcileRequest, Plan> & { primary: Watch; owned?: Watch[] };
  preEnqueue: Step<SchedulingRequest, Denial>;
  queueSort: Hook<SchedulingRequest & Grouped & { added: string }, number>;
  preFilter: Step<NodesRequest & Grouped, Denial | Selected>;
  filter: Step<NodeRequest, Denial>;
  table: Table;
  postFilter: Hook<FailedRequest, Denial | Nominated | { reclaim: Reclaim[]; reasons?: string[] }> & { pure?: boolean };
  preScore: Hook<NodesRequest, { skip?: boolean; state?: unknown }>;
  score: Hook<NodeRequest, number>;
  normalize: Hook<ScoresRequest, number[]>;
  reserve: Step<ChosenRequest, Denial>;
  unreserve: Hook<ChosenRequest, void>;
  permit: Step<ChosenRequest & { waitedSeconds: number }, Denial | ReturnType<typeof wait>>;
  preBind: Step<ChosenRequest, Denial>;
  bind: Hook<ChosenRequest, Denial | { annotations: Record<string, string> }>;
  postBind: Hook<ChosenRequest, void>;
  nodeAdmission: Hook<NodeAdmissionRequest, Denial>;
}

// abi.yaml: begin hooks
/** The hooks of a plugin: objects with a function decide, or the function alone. */
export interface Hooks {
  /** authorization: who may do what. */
  authorize?: Decisions["authorize"] | Decisions["authorize"]["decide"];
  /** customresource.convert: what an object is in another version. */
  convert?: Decisions["convert"] | Decisions["convert"]["decide"];
  /** admission.mutate: what an object becomes before it is stored. */
  mutate?: Decisions["mutate"] | Decisions["mutate"]["decide"];
  /** customresource.validate: what a schema cannot say of a custom resource. */
  validateCustom?: Decisions["validateCustom"] | Decisions["validateCustom"]["decide"];
  /** admission.validate: whether it may be stored. */
  validate?: Decisions["validate"] | Decisions["validate"]["decide"];
  /** reconcile: what there should be for an object. */
  reconcile?: Decisions["reconcile"];
  /** scheduling.preEnqueue: whether a pod is tried at all. */
  preEnqueue?: Decisions["preEnqueue"] | Decisions["preEnqueue"]["decide"];
  /** scheduling.queueSort: which pod goes first. */
  queueSort?: Decisions["queueSort"] | Decisions["queueSort"]["decide"];
  /** scheduling.preFilter: which nodes are looked at. */
  preFilter?: Decisions["preFilter"] | Decisions["preFilter"]["decide"];
  /** scheduling.filter: whether a pod may run on a node. */
  filter?: Decisions["filter"] | Decisions["filter"]["decide"];
  /** scheduling.table: which node a pod gets, all nodes in one call. */
  table?: Decisions["table"];
  /** scheduling.postFilter: who makes room where no node is left. */
  postFilter?: Decisions["postFilter"] | Decisions["postFilter"]["decide"];
  /** scheduling.preScore: what the scores of a cycle need. */
  preScore?: Decisions["preScore"] | Decisions["preScore"]["decide"];
  /** scheduling.score: how well a node suits. */
  score?: Decisions["score"] | Decisions["score"]["decide"];
  /** scheduling.normalize: what the plugin's scores are among each other. */
  normalize?: Decisions["normalize"] | Decisions["normalize"]["decide"];
  /** scheduling.reserve: whether a chosen node is taken. */
  reserve?: Decisions["reserve"] | Decisions["reserve"]["decide"];
  /** scheduling.unreserve: nothing: it learns that the choice came to nothing. */
  unreserve?: Decisions["unreserve"] | Decisions["unreserve"]["decide"];
  /** scheduling.permit: whether a pod is bound now, later or not. */
  permit?: Decisions["permit"] | Decisions["permit"]["decide"];
  /** scheduling.preBind: the same, just before binding. */
  preBind?: Decisions["preBind"] | Decisions["preBind"]["decide"];
  /** scheduling.bind: who binds, and with which annotations. */
  bind?: Decisions["bind"] | Decisions["bind"]["decide"];
  /** scheduling.postBind: nothing: it learns that the pod is bound. */
  postBind?: Decisions["postBind"] | Decisions["postBind"]["decide"];
  /** nodeadmission: whether a node runs a pod. */
  nodeAdmission?: Decisions["nodeAdmission"] | Decisions["nodeAdmission"]["decide"];
}
// abi.yaml: end hooks

/** Groups tell pods apart by what is written in them; the host counts what each of them has. */
export interface Groups {
  /** pod.metadata.namespace, pod.metadata.labels["..."] or pod.metadata.annotations["..."]. */
  of: string;
  /** The group of each value; several values may be one group. At most 1024. */
  names: Record<string, string>;
  /** The group of pods with another value, or none; without it they are in no group. */
  other?: string;
}

export interface Plugin extends Hooks {
  name: string;
  version?: string;
  /** Host functions that the plugin cannot do without. */
  needs?: string[];
  /** Teams or queues, for the steps of scheduling. With them queueSort ranks groups: pod is the first one of a group that waits. */
  groups?: Groups;
  /** A JSON schema of the settings: the host holds an entry's settings against it before settings is called, and names
   * the field that is wrong. */
  settingsSchema?: object;
  /** Takes the entry's settings before anything else. A string says why they are refused; hooks that are answered
   * take the place of those of the same name (fields that depend on the settings), and so do groups. */
  settings?(settings: any): string | Partial<Hooks & { groups: Groups }> | Nothing;
}

/** Makes a plugin; a module exports it as its default. */
export function plugin(p: Plugin): Plugin;

// ---- JSON, with integers as they are: those past 2^53 are BigInts. ----

export function stringify(value: unknown): string;
export function parse(text: string): any;

// ---- The host ----

/** Calls a host function, which the operator has to grant; it throws where that is not so, or where the function fails. */
export function call(name: string, input?: unknown): any;

// abi.yaml: begin host functions
/** Host functions. Each needs its grant in the plugin's entry, and throws without. */
export const host: {
  /** Grant: log: true. Input: `{"level": "INFO", "message": ""}`; levels `DEBUG`, `INFO`, `WARN`, `ERROR`. Reply: nothing. */
  log(input: any): void;
  clock: {
    /** Grant: clock: true. Input: nothing. Reply: nanoseconds since 1970, a decimal number. */
    now(): bigint;
  };
  random: {
    /** Grant: random: true. Input: how many, a decimal number, at most 4096. Reply: the bytes. */
    bytes(count: number): Uint8Array;
  };
  objects: {
    /** Grant: read. Input: an object's name, see below. Reply: `{"resourceVersion": "7", "object": {}}`; `object` is null where there is none. */
    get(input: any): any;
    /** Grant: read. Input: a selection, see below. Reply: `{"resourceVersion": "7", "items": [{}], "more": false}`. */
    list(input: any): any;
  };
  access: {
    /** Grant: accessReview: true. Input: the `spec` of a SubjectAccessReview. Reply: its `status`: `{"allowed": true, "denied": false, "reason": ""}`. */
    review(input: any): any;
  };
  events: {
    /** Grant: events: true. Input: `{"regarding": {"apiVersion": "", "kind": "", "namespace": "", "name": "", "uid": ""}, "type": "Normal", "reason": "", "message": ""}`. Reply: nothing. */
    record(input: any): void;
  };
  state: {
    /** Grant: state: {size: 64Ki}. Input: `{"key": ""}`. Reply: `{"value": "base64"}`; null where there is none. */
    get(input: any): any;
    /** Grant: state: {size: 64Ki}. Input: `{"key": "", "value": "base64"}`; without `value` the key is deleted. Reply: nothing. */
    put(input: any): void;
    /** Grant: state: {size: 64Ki}. Input: `{"prefix": ""}`. Reply: `{"keys": [""]}`. */
    list(input: any): any;
  };
  image: {
    /** Grant: images: {registries: [...]}. Input: `{"image": "registry.example/team/web:1"}`. Reply: `{"digest": "sha256:..."}`. */
    digest(input: any): any;
    /** Grant: images: {registries: [...]}. Input: the same. Reply: `{"digest": "", "mediaType": "", "manifest": {}}`: a manifest, or the index of an image for several platforms. */
    manifest(input: any): any;
    /** Grant: images: {registries: [...]}. Input: the same. Reply: `{"digest": "", "config": {}}`; of linux/amd64 where there are several platforms. */
    config(input: any): any;
  };
  http: {
    /** Grant: http. Input: `{"method": "GET", "url": "https://", "headers": {"": ""}, "body": "text"}`, or `"bodyBytes": "base64"`. Reply: `{"status": 200, "headers": {}, "body": "text"}`, or `"bodyBytes"` where it is no UTF-8; header names in lower case. */
    fetch(input: any): any;
  };
  dns: {
    /** Grant: dns. Input: `{"host": ""}`. Reply: `{"ips": ["192.0.2.1"]}`, sorted. */
    lookup(input: any): any;
  };
  certificate: {
    /** Grant: certificates: true. Input: `{"certificate": "PEM", "chain": "PEM", "at": "RFC 3339"}`, or `"certificateDER": "base64"`. Reply: `{"trusted": false, "reason": "why not"}`. */
    trusted(input: any): any;
  };
};
// abi.yaml: end host functions

declare global {
  /** What is printed goes to the log of the host. */
  interface Console {
    log(...values: any[]): void;
    info(...values: any[]): void;
    debug(...values: any[]): void;
    warn(...values: any[]): void;
    error(...values: any[]): void;
    trace(...values: any[]): void;
  }
  var console: Console;
}
