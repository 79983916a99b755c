/**
 * The AssemblyScript SDK for wasmplane plugins.
 *
 * A plugin is functions, and an object that names them:
 *
 *     import { Plugin, Input, Decision, rule } from "wasmplane";
 *     export { describe, alloc, call, reserve } from "wasmplane";
 *
 *     new Plugin("my-plugin", "0.1.0").validate(decide, ["object.metadata.labels"], [rule(["CREATE"], [""], ["pods"])]);
 *
 *     function decide(input: Input, out: Decision): void {
 *       if (!input.at(0).get("owner").exists) out.denyField("metadata.labels", "name an owner");
 *     }
 *
 * The host sends the declared fields as a flat table, which is read where it lies:
 * values are views, valid until the function returns. One function of a plugin runs at a time. Garbage is
 * collected between calls.
 */

// ---- Values ----

const NULL: u32 = 0, FALSE: u32 = 1, TRUE: u32 = 2, INT: u32 = 3, FLOAT: u32 = 4, STRING: u32 = 5, ARRAY: u32 = 6, OBJECT: u32 = 7, ABSENT: u32 = 8;

/** A value of the input, or of JSON. What is absent answers everything with the empty value. */
export class Value {
  /** @internal */
  constructor(private base: usize, private cell: u64, private owner: StaticArray<u8> | null = null) {}

  static get absent(): Value { return nothing; }

  @inline private get kind(): u32 { return <u32>(this.cell >> 60); }
  @inline private get place(): usize { return this.base + <usize><u32>this.cell; }
  @inline private get size(): i32 { return <i32>((this.cell >> 32) & 0xfffffff); }
  @inline private child(i: i32): Value { return new Value(this.base, load<u64>(this.place + (<usize>i << 3)), this.owner); }

  /** Whether the value is there; null is. */
  get exists(): bool { return this.kind != ABSENT; }
  /** Whether the value is there, and null. */
  get isNull(): bool { return this.kind == NULL; }
  /** Whether the value is true. */
  get isTrue(): bool { return this.kind == TRUE; }
  /** A string's text. */
  get text(): string { return this.kind == STRING ? String.UTF8.decodeUnsafe(this.place, this.size) : ""; }
  /** An integer, or the whole part of a number. */
  get int(): i64 { return this.kind == INT ? load<i64>(this.place) : <i64>this.float; }
  /** A number. */
  get float(): f64 { return this.kind == INT ? <f64>load<i64>(this.place) : this.kind == FLOAT ? load<f64>(this.place) : 0; }
  /** The number of items of an array, of keys of an object, or of bytes of a string. */
  get length(): i32 { return this.kind == ARRAY || this.kind == OBJECT || this.kind == STRING ? this.size : 0; }

  /** Whether the value is this string. */
  is(text: string): bool {
    // Most strings that policies compare are ASCII: no copy is made of those.
    if (this.kind != STRING || this.size < text.length) return false;
    for (let i = 0, n = text.length; i < n; i++) {
      const c = text.charCodeAt(i);
      if (c > 127) return this.text == text;
      if (load<u8>(this.place + i) != c) return false;
    }
    return this.size == text.length;
  }
  /** An item of an array. */
  at(i: i32): Value { return this.kind == ARRAY && <u32>i < <u32>this.size ? this.child(i) : nothing; }
  /** The value of a key of an object. */
  get(key: string): Value {
    if (this.kind == OBJECT) {
      for (let i = 0, n = this.size; i < n; i++) if (this.child(2 * i).is(key)) return this.child(2 * i + 1);
    }
    return nothing;
  }
  /** The i-th key of an object. */
  key(i: i32): string { return this.kind == OBJECT && <u32>i < <u32>this.size ? this.child(2 * i).text : ""; }
  /** The value of the i-th key of an object. */
  entry(i: i32): Value { return this.kind == OBJECT && <u32>i < <u32>this.size ? this.child(2 * i + 1) : nothing; }
  /** The value at the end of a path of names and dots: "spec.replicas". */
  path(path: string): Value {
    let v: Value = this;
    const names = path.split(".");
    for (let i = 0; i < names.length; i++) v = v.get(names[i]);
    return v;
  }
  /** Whether an array has this string. */
  has(text: string): bool {
    for (let i = 0, n = this.kind == ARRAY ? this.size : 0; i < n; i++) if (this.child(i).is(text)) return true;
    return false;
  }
  /** The items of an array of strings. */
  strings(): string[] {
    const out = new Array<string>();
    for (let i = 0, n = this.kind == ARRAY ? this.size : 0; i < n; i++) out.push(this.child(i).text);
    return out;
  }
  /** The value as JSON. */
  toString(): string {
    switch (this.kind) {
      case FALSE: return "false";
      case TRUE: return "true";
      case INT: return this.int.toString();
      case FLOAT: return isFinite(this.float) ? this.float.toString() : "null";
      case STRING: return quote(this.text);
      case ARRAY: {
        const parts = new Array<string>(this.size);
        for (let i = 0; i < parts.length; i++) parts[i] = this.child(i).toString();
        return "[" + parts.join(",") + "]";
      }
      case OBJECT: {
        const parts = new Array<string>(this.size);
        for (let i = 0; i < parts.length; i++) parts[i] = this.child(2 * i).toString() + ":" + this.child(2 * i + 1).toString();
        return "{" + parts.join(",") + "}";
      }
    }
    return "null";
  }
}

const nothing = new Value(0, <u64>ABSENT << 60);

/** What a hook is asked about. */
export class Input {
  /** @internal */
  constructor(private value: Value, private fields: string[]) {}

  /** The whole input of a hook that declared no fields. */
  get root(): Value { return this.value; }
  /** The field with this index among those that the hook declared. */
  at(field: i32): Value { return this.value.at(field); }
  /** The value of a field, by the path under which it was declared. A hook that
   * declared none reads the whole input by paths of names and dots. */
  get(path: string): Value {
    const i = this.fields.indexOf(path);
    if (i >= 0) return this.value.at(i);
    return this.fields.length ? nothing : this.value.path(path);
  }
}

// ---- Writing ----

/** A string as JSON. */
export function quote(s: string): string {
  let out = '"', from = 0;
  for (let i = 0, n = s.length; i < n; i++) {
    const c = s.charCodeAt(i);
    if (c >= 0x20 && c != 0x22 && c != 0x5c) continue;
    out += s.substring(from, i);
    from = i + 1;
    if (c < 0x20) out += "\\u00" + (c < 16 ? "0" : "1") + "0123456789abcdef".charAt(c & 15);
    else out += "\\" + String.fromCharCode(c);
  }
  return out + s.substring(from) + '"';
}

/** A value as JSON: strings, numbers, booleans, Value, Obj, Raw and arrays of them. */
export function json<T>(v: T): string {
  if (isString<T>()) return quote(changetype<string>(v));
  if (isBoolean<T>()) return v ? "true" : "false";
  if (isInteger<T>()) return (<i64>v).toString();
  if (isFloat<T>()) return isFinite(v) ? v.toString() : "null";
  if (isArray<T>()) {
    const list = changetype<Array<valueof<T>>>(v), parts = new Array<string>(list.length);
    for (let i = 0; i < list.length; i++) parts[i] = json<valueof<T>>(list[i]);
    return "[" + parts.join(",") + "]";
  }
  return v.toString();
}

/** An object to be written: new Obj().set("name", "web").set("replicas", 3). */
export class Obj {
  private parts: string[] = [];
  /** Adds a key. */
  set<T>(key: string, value: T): Obj {
    this.parts.push(quote(key) + ":" + json<T>(value));
    return this;
  }
  toString(): string { return "{" + this.parts.join(",") + "}"; }
}

/** JSON that is written as it is. */
export class Raw {
  constructor(private text: string) {}
  toString(): string { return this.text; }
}

/** Writes a key as part of a patch's path: slashes and tildes are escaped. */
export function token(key: string): string { return key.replaceAll("~", "~0").replaceAll("/", "~1"); }

// ---- Parsing: JSON becomes cells, so that it is read like an input. ----

class Parser {
  out: StaticArray<u8> = new StaticArray<u8>(256);
  used: i32 = 8; // the root's cell
  i: usize;
  failed: bool = false;
  constructor(at: usize, private end: usize) { this.i = at; }

  private room(n: i32, align: i32): i32 {
    const at = (this.used + align - 1) & ~(align - 1);
    if (at + n > this.out.length) {
      const more = new StaticArray<u8>(2 * (at + n));
      memory.copy(changetype<usize>(more), changetype<usize>(this.out), this.used);
      this.out = more;
    }
    this.used = at + n;
    return at;
  }
  @inline private put(at: i32): usize { return changetype<usize>(this.out) + at; }
  @inline private cell(kind: u32, n: i32, at: i32): u64 { return <u64>kind << 60 | <u64>n << 32 | <u64><u32>at; }
  private fail(): u64 { this.failed = true; return <u64>ABSENT << 60; }
  @inline private peek(): u8 { return this.i < this.end ? load<u8>(this.i) : 0; }

  space(): void {
    for (; this.i < this.end; this.i++) {
      const c = load<u8>(this.i);
      if (c != 0x20 && c != 9 && c != 10 && c != 13) break;
    }
  }
  private next(c: u8): bool {
    this.space();
    if (this.peek() != c) return false;
    this.i++;
    return true;
  }

  value(depth: i32): u64 {
    this.space();
    if (depth > 100) return this.fail();
    switch (this.peek()) {
      case 0x7b: return this.several(depth, true);
      case 0x5b: return this.several(depth, false);
      case 0x22: return this.str();
      case 0x74: return this.word("true", TRUE);
      case 0x66: return this.word("false", FALSE);
      case 0x6e: return this.word("null", NULL);
    }
    return this.num();
  }
  private word(text: string, kind: u32): u64 {
    for (let i = 0; i < text.length; i++, this.i++) if (this.peek() != <u8>text.charCodeAt(i)) return this.fail();
    return <u64>kind << 60;
  }
  private num(): u64 {
    const from = this.i;
    let whole = true, digits = 0, small: i64 = 0;
    const negative = this.peek() == 0x2d;
    if (negative) this.i++;
    for (; this.i < this.end; this.i++) {
      const c = load<u8>(this.i);
      if (c >= 0x30 && c <= 0x39) {
        digits++;
        small = small * 10 + (c - 0x30);
      } else if (c == 0x2e || c == 0x65 || c == 0x45 || c == 0x2b || c == 0x2d) {
        whole = false;
      } else break;
    }
    if (!digits) return this.fail();
    const at = this.room(8, 8);
    if (whole && digits < 19) {
      store<i64>(this.put(at), negative ? -small : small);
      return this.cell(INT, 8, at);
    }
    store<f64>(this.put(at), parseFloat(String.UTF8.decodeUnsafe(from, this.i - from)));
    return this.cell(FLOAT, 8, at);
  }
  private several(depth: i32, object: bool): u64 {
    const cells = new Array<u64>(), close: u8 = object ? 0x7d : 0x5d;
    this.i++;
    if (!this.next(close)) {
      do {
        if (object) {
          this.space();
          if (this.peek() != 0x22) return this.fail();
          cells.push(this.str());
          if (!this.next(0x3a)) return this.fail();
        }
        cells.push(this.value(depth + 1));
        if (this.failed) return this.fail();
      } while (this.next(0x2c));
      if (!this.next(close)) return this.fail();
    }
    const at = this.room(cells.length << 3, 8);
    for (let i = 0; i < cells.length; i++) store<u64>(this.put(at + (i << 3)), cells[i]);
    return this.cell(object ? OBJECT : ARRAY, object ? cells.length >> 1 : cells.length, at);
  }
  private str(): u64 {
    const at = this.room(0, 1);
    this.i++;
    while (this.i < this.end) {
      let c = load<u8>(this.i++);
      if (c == 0x22) return this.cell(STRING, this.used - at, at);
      if (c == 0x5c) {
        c = this.peek();
        this.i++;
        switch (c) {
          case 0x6e: c = 10; break;
          case 0x74: c = 9; break;
          case 0x72: c = 13; break;
          case 0x62: c = 8; break;
          case 0x66: c = 12; break;
          case 0x22: case 0x5c: case 0x2f: break;
          case 0x75: this.rune(); continue;
          default: return this.fail();
        }
      }
      store<u8>(this.put(this.room(1, 1)), c);
    }
    return this.fail();
  }
  private hex(): u32 {
    let v: u32 = 0;
    for (let i = 0; i < 4; i++) {
      let c: u32 = this.peek();
      this.i++;
      if (c >= 0x30 && c <= 0x39) c -= 0x30;
      else if ((c | 32) >= 0x61 && (c | 32) <= 0x66) c = (c | 32) - 0x57;
      else { this.failed = true; return 0; }
      v = v << 4 | c;
    }
    return v;
  }
  private rune(): void {
    let r = this.hex();
    if (r >= 0xd800 && r < 0xe000) {
      let whole: u32 = 0xfffd;
      if (r < 0xdc00 && this.i + 6 <= this.end && load<u8>(this.i) == 0x5c && load<u8>(this.i + 1) == 0x75) {
        this.i += 2;
        const low = this.hex();
        if (low >= 0xdc00 && low < 0xe000) whole = 0x10000 + ((r - 0xd800) << 10 | (low - 0xdc00));
      }
      r = whole;
    }
    const bytes = String.UTF8.encode(String.fromCodePoint(r));
    memory.copy(this.put(this.room(bytes.byteLength, 1)), changetype<usize>(bytes), bytes.byteLength);
  }
}

function parseAt(at: usize, length: usize): Value {
  const p = new Parser(at, at + length);
  const root = p.value(0);
  p.space();
  if (p.failed || p.i != at + length) return nothing;
  return new Value(changetype<usize>(p.out), root, p.out);
}

/** Parses JSON; absent where it is none. */
export function parse(text: string): Value {
  const bytes = String.UTF8.encode(text);
  return parseAt(changetype<usize>(bytes), bytes.byteLength);
}

// ---- Answers ----

/** What an admission hook decides: nothing, so far, lets the request through. */
export class Decision {
  private denied: bool = false;
  private message: string = "";
  private field: string = "";
  private status: i32 = 0;
  private failure: string | null = null;
  private causes: string[] = [];
  private patch: string[] = [];
  private warnings: string[] = [];
  private annotations: string[] = [];

  /** Refuses the request. */
  deny(message: string): void { this.denied = true; this.message = message; }
  /** Refuses the request because of a field, such as "spec.containers[0].image". */
  denyField(field: string, message: string): void { this.deny(message); this.field = field; }
  /** Refuses the request because of a field, beside what else is wrong: a user learns of everything at once. */
  cause(field: string, message: string): void {
    this.denied = true;
    this.causes.push('{"field":' + quote(field) + ',"message":' + quote(message) + "}");
  }
  /** Sets the HTTP status of a refusal; 403 otherwise. */
  code(status: i32): void { this.status = status; }
  /** Fails: the entry's failure policy decides. */
  fail(message: string): void { this.failure = message; }
  /** Shows a warning to the user. */
  warn(text: string): void { this.warnings.push(quote(text)); }
  /** Adds an annotation to the audit record. */
  audit(key: string, value: string): void { this.annotations.push(quote(key) + ":" + quote(value)); }
  /** Puts a value at a path of the object ("/metadata/labels/team"). What is missing on
   * the way is made; "/spec/containers/[name=web]" finds an item by key. */
  add<T>(path: string, value: T): void { this.patch.push('{"op":"add","path":' + quote(path) + ',"value":' + json<T>(value) + "}"); }
  /** Replaces a value that is there. */
  replace<T>(path: string, value: T): void { this.patch.push('{"op":"replace","path":' + quote(path) + ',"value":' + json<T>(value) + "}"); }
  /** Removes a value that is there. */
  remove(path: string): void { this.patch.push('{"op":"remove","path":' + quote(path) + "}"); }
  /** Takes a value from one path to another. */
  move(from: string, path: string): void { this.patch.push('{"op":"move","from":' + quote(from) + ',"path":' + quote(path) + "}"); }

  /** @internal */
  give(): u64 {
    const failure = this.failure;
    if (failure) return error(failure);
    if (!this.denied && !this.patch.length && !this.warnings.length && !this.annotations.length) return 0;
    let out = this.denied ? '{"allowed":false,"message":' + quote(this.message) : '{"allowed":true';
    if (this.denied && this.field.length) out += ',"field":' + quote(this.field);
    if (this.denied && this.status) out += ',"code":' + this.status.toString();
    if (this.denied && this.causes.length) out += ',"causes":[' + this.causes.join(",") + "]";
    if (!this.denied && this.patch.length) out += ',"patch":[' + this.patch.join(",") + "]";
    if (this.warnings.length) out += ',"warnings":[' + this.warnings.join(",") + "]";
    if (this.annotations.length) out += ',"auditAnnotations":{' + this.annotations.join(",") + "}";
    return give(out + "}");
  }
}

/** An authorizer's answer. */
export class Verdict {
  /** @internal */
  constructor(public decision: string, public reason: string) {}
}
/** Allows, for a reason. */
export function allow(reason: string): Verdict { return new Verdict("allow", reason); }
/** Denies, for a reason. */
export function deny(reason: string): Verdict { return new Verdict("deny", reason); }
/** Others decide. */
export function noOpinion(): Verdict { return new Verdict("", ""); }

/** Why a node does not run a pod: a word in CamelCase, and a sentence. */
export class Refusal {
  constructor(public reason: string, public message: string) {}
}

/** A row of the node table, or the pod's: cell(row, 0) is its first. */
export type Row = usize;
/** What is thought of one node. */
export type Judgement = u8;
// @ts-ignore: decorator
@inline export function cell(row: Row, i: i32): i64 { return load<i64>(row + (<usize>i << 3)); }
/** The pod may run there, with a score from 0 to 100. */
// @ts-ignore: decorator
@inline export function fits(score: i64): Judgement { return <u8>(1 + (score < 0 ? 0 : score > 100 ? 100 : score)); }
/** Not now, for a reason by its index. */
// @ts-ignore: decorator
@inline export function unfit(reason: i32): Judgement { return <u8>(128 + (reason & 63)); }
/** Not there, whatever pods leave the node, for a reason by its index. */
// @ts-ignore: decorator
@inline export function never(reason: i32): Judgement { return <u8>(192 + (reason & 63)); }

/** A column of the node table. */
export class Column {
  constructor(private where: string, private type: string, private text: string | null = null) {}
  toString(): string {
    const o = new Obj().set("path", this.where).set("type", this.type), text = this.text;
    if (text) o.set("equals", text);
    return o.toString();
  }
}
/** An integer, or a quantity rounded up. */
export function int(path: string): Column { return new Column(path, "int"); }
/** Thousandths of a quantity. */
export function milli(path: string): Column { return new Column(path, "milli"); }
/** A number that stands for a string: the same for equal strings, 0 where it is absent. */
export function label(path: string): Column { return new Column(path, "string"); }
/** 1 where the value is true. */
export function flag(path: string): Column { return new Column(path, "bool"); }
/** 1 where the value is this string. */
export function equals(path: string, text: string): Column { return new Column(path, "bool", text); }

/** What a reconciler wants. It says what there should be, not what to change: it is
 * carried out again and again. */
export class Plan {
  private applied: string[] = [];
  private deleted: string[] = [];
  private conditions: string[] = [];
  private events: string[] = [];
  private state: string = "";
  private seconds: i64 = 0;
  private failure: string | null = null;

  /** Makes an object be as given (server-side apply). It belongs to the primary, and goes with it. */
  apply(object: Obj): void { this.applied.push(object.toString()); }
  /** Removes an object. */
  delete(apiVersion: string, kind: string, namespace: string, name: string): void {
    this.deleted.push(new Obj().set("apiVersion", apiVersion).set("kind", kind).set("namespace", namespace).set("name", name).toString());
  }
  /** Sets fields of the primary's status. */
  status(status: Obj): void { this.state = status.toString(); }
  /** Sets a condition of the primary: "True", "False" or "Unknown". */
  condition(type: string, status: string, reason: string, message: string): void {
    this.conditions.push(new Obj().set("type", type).set("status", status).set("reason", reason).set("message", message).toString());
  }
  /** Records an event on the primary: "Normal" or "Warning". */
  event(type: string, reason: string, message: string): void {
    this.events.push(new Obj().set("type", type).set("reason", reason).set("message", message).toString());
  }
  /** Asks to be called again after some seconds, though nothing changed. */
  requeue(seconds: i64): void { this.seconds = seconds; }
  /** Fails: the host tries again later. */
  fail(message: string): void { this.failure = message; }

  /** @internal */
  give(): u64 {
    const failure = this.failure;
    if (failure) return error(failure);
    let out = '{"apply":[' + this.applied.join(",") + '],"delete":[' + this.deleted.join(",") + '],"conditions":[' + this.conditions.join(",") +
      '],"events":[' + this.events.join(",") + '],"requeueSeconds":' + this.seconds.toString();
    if (this.state.length) out += ',"status":' + this.state;
    return give(out + "}");
  }
}

// ---- The host ----

// @ts-ignore: decorator
@external("wasmplane", "call")
declare function hostCall(op: usize, opLength: usize, input: usize, inputLength: usize, out: usize, capacity: usize): i64;

/** A host function's reply: where it failed, the text is the message. */
export class Reply {
  /** @internal */
  constructor(public ok: bool, private bytes: ArrayBuffer, private n: i32) {}
  get text(): string { return String.UTF8.decodeUnsafe(changetype<usize>(this.bytes), this.n); }
  /** The reply as JSON; absent where it is none or the call failed. */
  get json(): Value { return this.ok ? parseAt(changetype<usize>(this.bytes), this.n) : nothing; }
}

/** Calls a host function that the operator granted. */
export function ask(name: string, input: string): Reply {
  const op = String.UTF8.encode(name), data = String.UTF8.encode(input);
  let out = new ArrayBuffer(1024);
  let n = hostCall(changetype<usize>(op), op.byteLength, changetype<usize>(data), data.byteLength, changetype<usize>(out), out.byteLength);
  const ok = n >= 0;
  if (!ok || n > out.byteLength) { // an empty name gives the last reply again, and its length
    n = hostCall(0, 0, 0, 0, 0, 0);
    out = new ArrayBuffer(<i32>n);
    n = hostCall(0, 0, 0, 0, changetype<usize>(out), out.byteLength);
  }
  return new Reply(ok, out, <i32>n);
}

/** Writes a line to the host's log; the plugin needs "log". */
export function log(message: string): void {
  ask("log", new Obj().set("level", "INFO").set("message", message).toString()); // a log that is not granted is no failure
}

// ---- The plugin ----

/** Which requests an admission hook wants to see. What is empty matches everything. */
export function rule(operations: string[], groups: string[], resources: string[], versions: string[] = []): Raw {
  return new Raw(new Obj().set("operations", operations).set("apiGroups", groups).set("apiVersions", versions).set("resources", resources).toString());
}

/** A kind of object that a reconciler reads. */
export function watch(group: string, version: string, resource: string, kind: string, selector: string = ""): Raw {
  return new Raw(new Obj().set("group", group).set("version", version).set("resource", resource).set("kind", kind).set("selector", selector).toString());
}

type Admission = (input: Input, out: Decision) => void;
type Answer = (input: Input) => string;

/** A plugin with its hooks; the last one made is the module's. */
export class Plugin {
  /** @internal */ configure: ((settings: Value) => string | null) | null = null;
  /** @internal */ onMutate: Admission | null = null;
  /** @internal */ onValidate: Admission | null = null;
  /** @internal */ onConvert: Admission | null = null;
  /** @internal */ onValidateCustom: Admission | null = null;
  /** @internal */ onAuthorize: ((input: Input) => Verdict) | null = null;
  /** @internal */ onFilter: ((input: Input) => string) | null = null;
  /** @internal */ onScore: ((input: Input) => i64) | null = null;
  /** @internal */ onTable: ((pod: Row, node: Row) => Judgement) | null = null;
  /** @internal */ onReconcile: ((input: Input, out: Plan) => void) | null = null;
  /** @internal */ onNodeAdmission: ((input: Input) => Refusal | null) | null = null;
  /** @internal */ others: Map<i32, Answer> = new Map();
  /** @internal */ fields: Map<i32, string[]> = new Map();
  /** @internal */ hooks: Map<i32, Obj> = new Map();
  /** @internal */ needed: string[] = [];
  /** @internal */ width: i32 = 0;

  constructor(public name: string, public version: string) { plugin = this; }

  private hook(op: i32, point: string, fields: string[]): Obj {
    const h = new Obj().set("op", op).set("point", point).set("encoding", "flat").set("fields", fields);
    this.fields.set(op, fields);
    this.hooks.set(op, h);
    return h;
  }

  /** Takes settings: the function is called with the entry's before anything else, and
   * answers why they are refused, or null. It may name hooks anew, whose fields depend on the settings. */
  settings(f: (settings: Value) => string | null): Plugin { this.configure = f; return this; }
  /** Names a host function that the plugin cannot do without. */
  needs(name: string): Plugin { this.needed.push(name); return this; }
  /** The hook at admission.mutate. */
  mutate(f: Admission, fields: string[] = [], match: Raw[] = []): Plugin {
    this.onMutate = f;
    this.hook(1, "admission.mutate", fields).set("match", match);
    return this;
  }
  /** The hook at admission.validate. */
  validate(f: Admission, fields: string[] = [], match: Raw[] = []): Plugin {
    this.onValidate = f;
    this.hook(2, "admission.validate", fields).set("match", match);
    return this;
  }
  /** The hook at customresource.convert: it brings a custom resource (object) into the version that desiredAPIVersion
   * names, by changes; the object has that apiVersion already. deny fails the conversion. */
  convert(f: Admission, fields: string[] = [], match: Raw[] = []): Plugin {
    this.onConvert = f;
    this.hook(9, "customresource.convert", fields).set("match", match);
    return this;
  }
  /** The hook at customresource.validate: writes of custom resources that their schema has nothing against. */
  validateCustom(f: Admission, fields: string[] = [], match: Raw[] = []): Plugin {
    this.onValidateCustom = f;
    this.hook(10, "customresource.validate", fields).set("match", match);
    return this;
  }
  /** The hook at authorization. The input has the names of a SubjectAccessReview's spec. */
  authorize(f: (input: Input) => Verdict, fields: string[] = []): Plugin {
    this.onAuthorize = f;
    this.hook(3, "authorization", fields);
    return this;
  }
  /** The hook at scheduling.filter: "" where the pod fits, else the reason. */
  filter(f: (input: Input) => string, fields: string[] = []): Plugin {
    this.onFilter = f;
    this.hook(4, "scheduling.filter", fields);
    return this;
  }
  /** The hook at scheduling.score: 0 to 100. */
  score(f: (input: Input) => i64, fields: string[] = []): Plugin {
    this.onScore = f;
    this.hook(5, "scheduling.score", fields);
    return this;
  }
  /** The hook at scheduling.table: all nodes are judged in one call. */
  table(judge: (pod: Row, node: Row) => Judgement, columns: Column[], pod: Column[] = [], reasons: string[] = []): Plugin {
    this.onTable = judge;
    this.width = columns.length;
    this.hook(6, "scheduling.table", []).set("columns", columns).set("pod", pod).set("reasons", reasons);
    return this;
  }
  /** The hook at reconcile, with the kind that it reconciles and those that it makes. */
  reconcile(f: (input: Input, out: Plan) => void, primary: Raw, owned: Raw[], fields: string[] = []): Plugin {
    this.onReconcile = f;
    this.hook(7, "reconcile", fields).set("primary", primary).set("owned", owned);
    return this;
  }
  /** The hook at nodeadmission: why the node does not run the pod, or null. */
  nodeAdmission(f: (input: Input) => Refusal | null, fields: string[] = []): Plugin {
    this.onNodeAdmission = f;
    this.hook(8, "nodeadmission", fields);
    return this;
  }
  /** A hook at any other point; op is from 100 on, the answer is JSON. */
  other(op: i32, point: string, f: Answer, fields: string[] = []): Plugin {
    this.others.set(op, f);
    this.hook(op, point, fields);
    return this;
  }
}

let plugin: Plugin | null = null;
let room: StaticArray<u8> = new StaticArray<u8>(4096);
let rows: StaticArray<u8> = new StaticArray<u8>(0);
let verdicts: StaticArray<u8> = new StaticArray<u8>(0);
let answer: ArrayBuffer = new ArrayBuffer(0);
let calls: i32 = 0;

function give(text: string, failed: bool = false): u64 {
  answer = String.UTF8.encode(text);
  return <u64>changetype<usize>(answer) << 32 | <u64>answer.byteLength | (failed ? 0x80000000 : 0);
}

function error(message: string): u64 { return give(message, true); }

/** The export of this name: every plugin exports it again. */
export function describe(): u64 {
  const p = plugin;
  if (!p) return error("the module makes no Plugin");
  return give(new Obj().set("abi", 1).set("name", p.name).set("version", p.version).set("settings", p.configure != null)
    .set("needs", p.needed).set("hooks", p.hooks.values()).toString());
}

/** The export of this name: every plugin exports it again. */
export function alloc(n: i32): i32 {
  if ((++calls & 31) == 0 || n > 65536) __collect(); // nothing of a call before is on the stack here
  if (n <= 0) return 0;
  if (room.length < n) room = new StaticArray<u8>(n);
  return <i32>changetype<usize>(room);
}

/** The export of this name: every plugin exports it again. */
export function reserve(n: i32): i32 {
  const p = plugin;
  const need = n * 8 * (p ? p.width : 0);
  if (rows.length < need) rows = new StaticArray<u8>(need);
  if (verdicts.length < n) verdicts = new StaticArray<u8>(n);
  return <i32>changetype<usize>(rows);
}

function judge(p: Plugin, f: (pod: Row, node: Row) => Judgement, data: usize): u64 {
  const n = <i32>load<i64>(data), width = <usize>p.width << 3, out = changetype<usize>(verdicts);
  if (n > verdicts.length) return error("more rows than were reserved");
  let row = changetype<usize>(rows);
  for (let i = 0; i < n; i++, row += width) store<u8>(out + i, f(data + 8, row));
  return <u64>out << 32 | <u64>n;
}

/** The export of this name: every plugin exports it again. */
export function call(op: i32, at: i32, n: i32): u64 {
  const p = plugin;
  if (!p) return error("the module makes no Plugin");
  const data = <usize>at;
  if (op == 0) {
    const f = p.configure;
    if (!f) return error("the plugin takes no settings");
    const refusal = f(parseAt(data, n));
    return refusal ? error(refusal) : 0;
  }
  if (op == 6) {
    const f = p.onTable;
    if (f && n >= 8) return judge(p, f, data);
  }
  if (!p.fields.has(op)) return error("the plugin has no such operation");
  const input = new Input(n >= 8 ? new Value(data, load<u64>(data)) : nothing, p.fields.get(op));
  if (op == 1 || op == 2 || op == 9 || op == 10) {
    const f = op == 1 ? p.onMutate : op == 2 ? p.onValidate : op == 9 ? p.onConvert : p.onValidateCustom, out = new Decision();
    if (f) f(input, out);
    return out.give();
  }
  if (op == 3) {
    const f = p.onAuthorize;
    const v = f ? f(input) : noOpinion();
    return v.decision.length ? give(new Obj().set("decision", v.decision).set("reason", v.reason).toString()) : 0;
  }
  if (op == 4) {
    const f = p.onFilter;
    const reason = f ? f(input) : "";
    return reason.length ? give('{"fits":false,"reasons":[' + quote(reason) + "]}") : 0;
  }
  if (op == 5) {
    const f = p.onScore;
    return f ? give(f(input).toString()) : 0;
  }
  if (op == 7) {
    const f = p.onReconcile, out = new Plan();
    if (f) f(input, out);
    return out.give();
  }
  if (op == 8) {
    const f = p.onNodeAdmission;
    const r = f ? f(input) : null;
    return r ? give('{"admitted":false,"reason":' + quote(r.reason) + ',"message":' + quote(r.message) + "}") : 0;
  }
  return give(p.others.get(op)(input));
}
