// SPDX-License-Identifier: Apache-2.0

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

type Handed = u64; // `wasmplane plugin build --component` builds with u32 here: where the answer stands
const COMPONENT = sizeof<Handed>() == 4;

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
  @inline private child(i: i32): Value { return view(this.base, load<u64>(this.place + (<usize>i << 3)), this.owner); }
  /** Whether the i-th cell is this string. */
  @inline private spells(i: i32, text: string): bool { return same(this.base, load<u64>(this.place + (<usize>i << 3)), text); }
  /** @internal */
  lend(base: usize, cell: u64): Value { this.base = base; this.cell = cell; return this; }

  /** Whether the value is there; null is. */
  get exists(): bool { return this.kind != ABSENT; }
  /** Whether the value is there, and null. */
  get isNull(): bool { return this.kind == NULL; }
  /** Whether the value is true. */
  get isTrue(): bool { return this.kind == TRUE; }
  /** A string's text. */
  get text(): string {
    if (this.kind != STRING) return "";
    made += 1 + (this.size >> 7);
    return String.UTF8.decodeUnsafe(this.place, this.size);
  }
  /** An integer, or the whole part of a number. */
  get int(): i64 { return this.kind == INT ? load<i64>(this.place) : <i64>this.float; }
  /** A number. */
  get float(): f64 { return this.kind == INT ? <f64>load<i64>(this.place) : this.kind == FLOAT ? load<f64>(this.place) : 0; }
  /** The number of items of an array, of keys of an object, or of bytes of a string. */
  get length(): i32 { return this.kind == ARRAY || this.kind == OBJECT || this.kind == STRING ? this.size : 0; }

  /** Whether the value is this string. */
  is(text: string): bool { return same(this.base, this.cell, text); }
  /** Where a character of ASCII is in a string, counted in bytes, -1: nowhere. Nothing is copied, as with text. */
  find(c: i32, from: i32 = 0): i32 {
    const at = this.place, n = this.kind == STRING ? this.size : 0;
    for (let i = from; i < n; i++) if (load<u8>(at + i) == c) return i;
    return -1;
  }
  /** Where such a character is for the last time. */
  findLast(c: i32): i32 {
    const at = this.place;
    for (let i = this.kind == STRING ? this.size - 1 : -1; i >= 0; i--) if (load<u8>(at + i) == c) return i;
    return -1;
  }
  /** Whether a string begins with another. */
  startsWith(text: string): bool { return this.part(0, text.length, text); }
  /** Whether a string ends in another. */
  endsWith(text: string): bool { return this.part(this.length - text.length, text.length, text); }
  private part(from: i32, n: i32, text: string): bool {
    for (let i = 0; i < n; i++) { // its bytes are not its characters
      if (text.charCodeAt(i) > 127) return from == 0 ? this.text.startsWith(text) : this.text.endsWith(text);
    }
    if (this.kind != STRING || from < 0 || from + n > this.size) return false;
    for (let i = 0; i < n; i++) if (load<u8>(this.place + from + i) != text.charCodeAt(i)) return false;
    return true;
  }
  /** An item of an array. */
  at(i: i32): Value { return this.kind == ARRAY && <u32>i < <u32>this.size ? this.child(i) : nothing; }
  /** The value of a key of an object. */
  get(key: string): Value {
    if (this.kind == OBJECT) {
      for (let i = 0, n = this.size; i < n; i++) if (this.spells(2 * i, key)) return this.child(2 * i + 1);
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
    for (let i = 0, n = this.kind == ARRAY ? this.size : 0; i < n; i++) if (this.spells(i, text)) return true;
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

/** Whether a cell is this string. Most strings that policies compare are ASCII: no copy is made of those. */
function same(base: usize, cell: u64, text: string): bool {
  const n = text.length, size = <i32>((cell >> 32) & 0xfffffff), at = base + <usize><u32>cell;
  if (<u32>(cell >> 60) != STRING || size < n) return false;
  for (let i = 0; i < n; i++) {
    const c = text.charCodeAt(i);
    if (c > 127) return String.UTF8.decodeUnsafe(at, size) == text;
    if (load<u8>(at + i) != c) return false;
  }
  return size == n;
}

// Views of the input are lent out again by the next call: to allocate one takes as long as to
// read a field a hundred times. What belongs to a parsed document may be kept, and is made anew.

const lendable: i32 = 512;
const views = new Array<Value>();
let lent: i32 = 0;

function view(base: usize, cell: u64, owner: StaticArray<u8> | null): Value {
  if (!owner) {
    if (lent < views.length) return unchecked(views[lent++]).lend(base, cell);
    if (lent < lendable) {
      lent++;
      const v = new Value(base, cell);
      views.push(v);
      return v;
    }
  }
  made++;
  return new Value(base, cell, owner);
}

/** What a hook is asked about. */
export class Input {
  /** @internal */
  constructor(private value: Value, private fields: string[]) {}
  /** @internal */
  lend(value: Value, fields: string[]): Input { this.value = value; this.fields = fields; return this; }

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
  /** Whether nothing was set. */
  get empty(): bool { return !this.parts.length; }
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

/** Why the call that runs fails, once it is known. */
let failure: string | null = null;

/** Makes the call that runs fail, whatever its hook answers: the failure policy of the plugin's
 * entry decides then. It is for what a hook cannot go on without, an object that the host does not give for example. */
export function fail(message: string): void { failure = message; }

/** No strings: what a list is before something is put into it, which most calls never do. */
const none: string[] = [];

/** Text that grows, as UTF-8. Its room is used again, which a string's is not. */
class Writer {
  private bytes: StaticArray<u8> = new StaticArray<u8>(128);
  private used: i32 = 0;

  get empty(): bool { return !this.used; }
  get at(): usize { return changetype<usize>(this.bytes); }
  get length(): i32 { return this.used; }
  reset(): Writer { this.used = 0; return this; }
  toString(): string { return String.UTF8.decodeUnsafe(this.at, this.used); }

  private room(n: i32): usize {
    const need = this.used + n;
    if (need > this.bytes.length) {
      const more = new StaticArray<u8>(2 * need);
      memory.copy(changetype<usize>(more), this.at, this.used);
      this.bytes = more;
      made += 1 + (need >> 6);
    }
    return this.at + this.used;
  }
  private part(text: string, from: i32, n: i32): void {
    if (n) this.used += encode(changetype<usize>(text) + (<usize>from << 1), n, this.room(3 * n));
  }
  private byte(c: u32): void {
    store<u8>(this.room(1), <u8>c);
    this.used++;
  }
  /** Writes text as it is. */
  raw(text: string): Writer { this.part(text, 0, text.length); return this; }
  /** Writes a string as JSON. */
  quoted(text: string): Writer {
    let from = 0;
    this.byte(0x22);
    for (let i = 0, n = text.length; i < n; i++) {
      const c = text.charCodeAt(i);
      if (c >= 0x20 && c != 0x22 && c != 0x5c) continue;
      this.part(text, from, i - from);
      from = i + 1;
      this.byte(0x5c);
      if (c < 0x20) this.raw(c < 16 ? "u000" : "u001").byte("0123456789abcdef".charCodeAt(c & 15));
      else this.byte(c);
    }
    this.part(text, from, text.length - from);
    this.byte(0x22);
    return this;
  }
  /** Writes a value as JSON. */
  value<T>(v: T): Writer {
    if (isString<T>()) return this.quoted(changetype<string>(v));
    return this.raw(json<T>(v));
  }
  /** Writes what another has. */
  all(other: Writer): Writer {
    memory.copy(this.room(other.used), other.at, other.used);
    this.used += other.used;
    return this;
  }
  /** Writes a list of JSON texts. */
  list(parts: string[], open: string, close: string): Writer {
    this.raw(open);
    for (let i = 0, n = parts.length; i < n; i++) {
      if (i) this.byte(0x2c);
      this.raw(parts[i]);
    }
    return this.raw(close);
  }
}

/** Writes n characters of UTF-16 as UTF-8, four at a time while they are ASCII, and answers the number of bytes. */
function encode(from: usize, n: i32, to: usize): i32 {
  let i: i32 = 0;
  for (; i + 4 <= n; i += 4) {
    const four = load<u64>(from + (<usize>i << 1));
    if (four & 0xff80ff80ff80ff80) break;
    const two = four | four >> 8; // two characters in the lowest bytes of each half
    store<u32>(to + i, <u32>((two & 0xffff) | (two >> 16 & 0xffff0000)));
  }
  for (; i < n; i++) {
    const c = load<u16>(from + (<usize>i << 1));
    if (c > 127) return i + <i32>String.UTF8.encodeUnsafe(from + (<usize>i << 1), n - i, to + i);
    store<u8>(to + i, <u8>c);
  }
  return i;
}

/** Changes to an object, in their order, in a plan: a JSON patch of RFC 6902, which the API server applies. */
export class Patch {
  protected ops: Writer = new Writer();
  private change(op: string, path: string): Writer {
    if (!this.ops.empty) this.ops.raw(",");
    return this.ops.raw('{"op":"').raw(op).raw('","path":').quoted(path);
  }
  /** Puts a value at a path. */
  add<T>(path: string, value: T): Patch { this.change("add", path).raw(',"value":').value<T>(value).raw("}"); return this; }
  /** Replaces a value that is there. */
  replace<T>(path: string, value: T): Patch { this.change("replace", path).raw(',"value":').value<T>(value).raw("}"); return this; }
  /** Removes a value that is there. */
  remove(path: string): Patch { this.change("remove", path).raw("}"); return this; }
  /** Takes a value from one path to another. */
  move(from: string, path: string): Patch { this.change("move", path).raw(',"from":').quoted(from).raw("}"); return this; }
  /** Makes the whole patch fail where another value is there. */
  test<T>(path: string, value: T): Patch { this.change("test", path).raw(',"value":').value<T>(value).raw("}"); return this; }
  toString(): string { return "[" + this.ops.toString() + "]"; }
}

/** What an admission hook decides: nothing, so far, lets the request through. It is a patch of the object, too:
 * add makes what is missing on the way, and "/spec/containers/[name=web]" finds an item by key. */
export class Decision extends Patch {
  private denied: bool = false;
  private message: string = "";
  private field: string = "";
  private status: i32 = 0;
  private kind: string = "";
  private causes: string[] = none;
  private whole: string = "";
  private warnings: string[] = none;
  private annotations: string[] = none;

  /** @internal makes the decision that of another call. */
  reset(): Decision {
    this.denied = false;
    this.status = 0;
    this.message = this.field = this.kind = this.whole = "";
    this.causes = this.warnings = this.annotations = none;
    this.ops.reset();
    return this;
  }

  /** Refuses the request. */
  deny(message: string): void { this.denied = true; this.message = message; }
  /** Refuses the request because of a field, such as "spec.containers[0].image". */
  denyField(field: string, message: string): void { this.deny(message); this.field = field; }
  /** Refuses the request because of a field, beside what else is wrong: a user learns of everything at once. */
  cause(field: string, message: string): void {
    this.denied = true;
    if (this.causes === none) this.causes = [];
    this.causes.push('{"field":' + quote(field) + ',"message":' + quote(message) + "}");
  }
  /** Sets the HTTP status of a refusal; 403 otherwise. */
  code(status: i32): void { this.status = status; }
  /** Sets the refusal's metav1.StatusReason: "Invalid", "Conflict", ... */
  reason(word: string): void { this.kind = word; }
  /** Fails: the entry's failure policy decides. */
  fail(message: string): void { failure = message; }
  /** Shows a warning to the user. */
  warn(text: string): void {
    if (this.warnings === none) this.warnings = [];
    this.warnings.push(quote(text));
  }
  /** Adds an annotation to the audit record. */
  audit(key: string, value: string): void {
    if (this.annotations === none) this.annotations = [];
    this.annotations.push(quote(key) + ":" + quote(value));
  }
  /** Makes the object be as given, in the place of a patch; only a mutating hook that named no fields may. */
  setObject<T>(object: T): void { this.whole = json<T>(object); }

  /** @internal */
  give(): u64 {
    if (!this.denied && this.ops.empty && !this.whole.length && !this.warnings.length && !this.annotations.length) return 0;
    const out = answer.reset();
    if (this.denied) {
      out.raw('{"allowed":false,"message":').quoted(this.message);
      if (this.field.length) out.raw(',"field":').quoted(this.field);
      if (this.status) out.raw(',"code":').raw(this.status.toString());
      if (this.causes.length) out.list(this.causes, ',"causes":[', "]");
      if (this.kind.length) out.raw(',"reason":').quoted(this.kind);
    } else {
      out.raw('{"allowed":true');
      if (!this.ops.empty) out.raw(',"patch":[').all(this.ops).raw("]");
      if (this.whole.length) out.raw(',"object":').raw(this.whole);
    }
    if (this.warnings.length) out.list(this.warnings, ',"warnings":[', "]");
    if (this.annotations.length) out.list(this.annotations, ',"auditAnnotations":{', "}");
    return written(out.raw("}"), false);
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

// ---- Answers of the steps of scheduling ----

let lasting: bool = false;

/** Marks a filter's reason as one that holds whatever pods leave the node, so that nobody is evicted for it:
 * return forGood("node(s) have no GPU"). */
export function forGood(reason: string): string { lasting = true; return reason; }

/** What a hook works out for the later ones of the same cycle. */
export class Preparation {
  protected skipped: bool = false;
  protected state: string = "";
  /** Leaves the plugin's filter (after preFilter) or score (after preScore) out of this cycle. */
  skip(): void { this.skipped = true; }
  /** Hands a value to the plugin's later hooks of this cycle, which read it as "state". What an
   * instance keeps in its own memory another does not see. */
  keep<T>(state: T): void { this.state = json<T>(state); }

  /** @internal */
  answer(): Obj {
    const o = new Obj();
    if (this.skipped) o.set("skip", true);
    if (this.state.length) o.set("state", new Raw(this.state));
    return o;
  }
}

/** What preFilter answers: nothing, so far, leaves all nodes in. */
export class Selection extends Preparation {
  private nodes: string[] = [];
  private narrowed: bool = false;
  private reasons: string[] = [];
  private forever: bool = false;
  /** Narrows the search to the nodes that are named, one call for each. */
  only(node: string): void {
    this.narrowed = true;
    if (node.length) this.nodes.push(node);
  }
  /** Keeps the pod off every node, for now. */
  refuse(reason: string): void { this.reasons.push(reason); }
  /** Keeps the pod off every node, whatever pods leave them. */
  never(reason: string): void { this.forever = true; this.refuse(reason); }

  /** @internal */
  answer(): Obj {
    if (this.reasons.length) {
      const o = new Obj().set("fits", false).set("reasons", this.reasons);
      return this.forever ? o.set("unresolvable", true) : o;
    }
    const o = super.answer();
    return this.narrowed ? o.set("nodes", this.nodes) : o;
  }
}

/** What postFilter proposes: nothing, so far. */
export class Nomination {
  private node: string = "";
  private victims: Obj[] = [];
  private reclaimed: Obj[] = [];
  private reasons: string[] = [];
  /** Names the node on which the pod will fit. */
  nominate(node: string): void { this.node = node; }
  /** Removes a pod of that node, of lower priority, to make room. */
  evict(namespace: string, name: string, uid: string = ""): void {
    this.victims.push(new Obj().set("namespace", namespace).set("name", name).set("uid", uid));
  }
  /** Lets those pods of a group make room that have no place in what it keeps: the most important ones keep theirs,
   * and of a resource that is not named, all: new Obj().set("milliCPU", 64000).set("scalar", new Obj().set("nvidia.com/gpu", 8)).
   * The host finds out which of them have to go, whole gangs; the pods of a group that is named first rather stay. It takes the
   * place of nominate, for plugins with groups. */
  reclaim(group: string, keep: Obj): void { this.reclaimed.push(new Obj().set("group", group).set("keep", keep)); }
  /** Lets the pods of a group make room whose priority is lower. */
  reclaimBelow(group: string, priority: i64): void { this.reclaimed.push(new Obj().set("group", group).set("below", priority)); }
  /** Says why nothing is proposed. */
  explain(reason: string): void { this.reasons.push(reason); }

  /** @internal */
  answer(): Obj {
    const o = new Obj();
    if (this.node.length) o.set("nominated", this.node).set("evict", this.victims);
    if (this.reclaimed.length) o.set("reclaim", this.reclaimed);
    if (this.reasons.length) o.set("reasons", this.reasons);
    return o;
  }
}

/** What permit answers. */
export class Permission {
  /** @internal */
  constructor(public decision: string, public seconds: f64, public reason: string) {}
}
/** Lets the pod be bound. */
export function proceed(): Permission { return new Permission("", 0, ""); }
/** Holds the pod and its place; the hook is asked again within so many seconds, for 15 minutes at most. */
export function wait(seconds: f64, reason: string): Permission { return new Permission("wait", seconds, reason); }
/** Gives the place up; the pod is tried again later. */
export function reject(reason: string): Permission { return new Permission("deny", 0, reason); }

/** What bind answers: nothing, so far, leaves the binding to others. */
export class Binding {
  private bound: bool = false;
  private annotations: Obj = new Obj();
  private reasons: string[] = [];
  /** Has the pod bound to the node. */
  bind(): void { this.bound = true; }
  /** Has the pod bound, with an annotation. */
  annotate(key: string, value: string): void { this.bound = true; this.annotations.set(key, value); }
  /** Gives the place up. */
  refuse(reason: string): void { this.reasons.push(reason); }

  /** @internal */
  answer(): Obj {
    const o = new Obj();
    if (this.reasons.length) return o.set("allowed", false).set("reasons", this.reasons);
    return this.bound ? o.set("annotations", this.annotations) : o;
  }
}

/** Names an object of a plan. Without a namespace it is in the primary's; with a uid, an object of the same name
 * that is another one is left alone. subresource ("scale") is for patches. For deletions: an object in another state
 * than resourceVersion is not deleted, and the host calls again; propagation is "Background" (the default),
 * "Foreground" or "Orphan". */
export class Target {
  constructor(public apiVersion: string, public kind: string, public name: string, public namespace: string = "", public uid: string = "", public subresource: string = "", public resourceVersion: string = "", public propagation: string = "") {}
  /** @internal */
  object(): Obj {
    const o = new Obj().set("apiVersion", this.apiVersion).set("kind", this.kind).set("name", this.name);
    if (this.namespace.length) o.set("namespace", this.namespace);
    if (this.uid.length) o.set("uid", this.uid);
    if (this.subresource.length) o.set("subresource", this.subresource);
    if (this.resourceVersion.length) o.set("resourceVersion", this.resourceVersion);
    if (this.propagation.length) o.set("propagationPolicy", this.propagation);
    return o;
  }
}

/** What a reconciler wants. It says what there should be, not what to change: it is
 * carried out again and again. */
export class Plan {
  private applied: string[] = [];
  private patched: string[] = [];
  private deleted: string[] = [];
  private conditions: string[] = [];
  private events: string[] = [];
  private state: string = "";
  private seconds: i64 = 0;

  /** Makes an object be as given (server-side apply). It belongs to the primary, and goes with it. */
  apply(object: Obj): void { this.applied.push(object.toString()); }
  /** Removes an object. */
  delete(apiVersion: string, kind: string, namespace: string, name: string): void {
    this.deleteTarget(new Target(apiVersion, kind, name, namespace));
  }
  /** Removes an object, with the uid where one is given. */
  deleteTarget(target: Target): void { this.deleted.push(target.object().toString()); }
  /** Changes an object that is not the plugin's to apply as a whole. */
  patch(target: Target, patch: Patch): void { this.patched.push(target.object().set("patch", patch).toString()); }
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
  fail(message: string): void { failure = message; }

  /** @internal */
  give(): u64 {
    let out = '{"apply":[' + this.applied.join(",") + '],"delete":[' + this.deleted.join(",") + '],"conditions":[' + this.conditions.join(",") +
      '],"events":[' + this.events.join(",") + '],"requeueSeconds":' + this.seconds.toString();
    if (this.patched.length) out += ',"patch":[' + this.patched.join(",") + "]";
    if (this.state.length) out += ',"status":' + this.state;
    return give(out + "}");
  }
}

// ---- The host ----

// @ts-ignore: decorator
@external("wasmplane", "call")
declare function hostCall(op: usize, opLength: usize, input: usize, inputLength: usize, out: usize, capacity: usize): i64;

// The imports of the world in sdk/wit/built.wit, as the component model's canonical ABI has them. An answer stands
// in a place that is passed.
// @ts-ignore: decorator
@external("wasmplane:plugin/host@1.0.0", "call")
declare function hostCallCanonically(op: usize, opLength: usize, input: usize, inputLength: usize, place: usize): void;
// @ts-ignore: decorator
@external("wasi:cli/stderr@0.2.0", "get-stderr")
declare function getStderr(): i32;
// @ts-ignore: decorator
@external("wasi:io/streams@0.2.0", "[method]output-stream.blocking-write-and-flush")
declare function writeStream(stream: i32, at: usize, length: usize, place: usize): void;

const place = memory.data(16), none8 = new ArrayBuffer(0);
let asking: bool = false; // what the host wants memory for is a reply
let replied: ArrayBuffer = none8; // that memory

/** @internal In a component, what the compiler calls where an error is thrown. */
export function abortCanonically(message: string | null, file: string | null, line: u32, column: u32): void {
  const text = String.UTF8.encode("abort: " + (message ? message : "") + " at " + (file ? file : "") + ":" + line.toString() + ":" + column.toString() + "\n");
  writeStream(getStderr(), changetype<usize>(text), text.byteLength, memory.data(12));
  unreachable();
}

/** @internal In a component, memory for the host; what it passes is the input of a call, or what it replies. */
export function cabi_realloc(old: usize, oldLength: usize, align: usize, length: usize): usize {
  if (!asking && !oldLength) return alloc(<i32>length);
  replied = new ArrayBuffer(<i32>length);
  if (oldLength) memory.copy(changetype<usize>(replied), old, min(oldLength, length));
  return changetype<usize>(replied);
}

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
  if (COMPONENT) { // a result: a list, or a variant with a text
    replied = none8;
    asking = true;
    hostCallCanonically(changetype<usize>(op), op.byteLength, changetype<usize>(data), data.byteLength, place);
    asking = false;
    return new Reply(load<u8>(place) == 0, replied, replied.byteLength);
  }
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

// abi.yaml: begin operations
/** The operations, by hook. */
const enum Op {
  Settings = 0,
  Mutate = 1,
  Validate = 2,
  Authorize = 3,
  Filter = 4,
  Score = 5,
  Table = 6,
  Reconcile = 7,
  NodeAdmission = 8,
  Convert = 9,
  ValidateCustom = 10,
  PreEnqueue = 11,
  QueueSort = 12,
  PreFilter = 13,
  PostFilter = 14,
  PreScore = 15,
  Normalize = 16,
  Reserve = 17,
  Unreserve = 18,
  Permit = 19,
  PreBind = 20,
  Bind = 21,
  PostBind = 22,
}

/** The point of an operation. */
function pointOf(op: i32): string {
  switch (op) {
    case Op.Mutate: return "admission.mutate";
    case Op.Validate: return "admission.validate";
    case Op.Authorize: return "authorization";
    case Op.Filter: return "scheduling.filter";
    case Op.Score: return "scheduling.score";
    case Op.Table: return "scheduling.table";
    case Op.Reconcile: return "reconcile";
    case Op.NodeAdmission: return "nodeadmission";
    case Op.Convert: return "customresource.convert";
    case Op.ValidateCustom: return "customresource.validate";
    case Op.PreEnqueue: return "scheduling.preEnqueue";
    case Op.QueueSort: return "scheduling.queueSort";
    case Op.PreFilter: return "scheduling.preFilter";
    case Op.PostFilter: return "scheduling.postFilter";
    case Op.PreScore: return "scheduling.preScore";
    case Op.Normalize: return "scheduling.normalize";
    case Op.Reserve: return "scheduling.reserve";
    case Op.Unreserve: return "scheduling.unreserve";
    case Op.Permit: return "scheduling.permit";
    case Op.PreBind: return "scheduling.preBind";
    case Op.Bind: return "scheduling.bind";
    case Op.PostBind: return "scheduling.postBind";
    default: return "";
  }
}
// abi.yaml: end operations

/** A plugin with its hooks; the last one made is the module's. */
export class Plugin {
  /** @internal */ configure: ((settings: Value) => string | null) | null = null;
  /** @internal */ schema: string = "";
  /** @internal */ onMutate: Admission | null = null;
  /** @internal */ onValidate: Admission | null = null;
  /** @internal */ onConvert: Admission | null = null;
  /** @internal */ onValidateCustom: Admission | null = null;
  /** @internal */ onAuthorize: ((input: Input) => Verdict) | null = null;
  /** @internal */ gates: Map<i32, (input: Input) => string> = new Map();
  /** @internal */ ranks: Map<i32, (input: Input) => i64> = new Map();
  /** @internal */ notices: Map<i32, (input: Input) => void> = new Map();
  /** @internal */ onPreFilter: ((input: Input, out: Selection) => void) | null = null;
  /** @internal */ onPostFilter: ((input: Input, out: Nomination) => void) | null = null;
  /** @internal */ onPreScore: ((input: Input, out: Preparation) => void) | null = null;
  /** @internal */ onNormalize: ((input: Input, scores: i64[]) => void) | null = null;
  /** @internal */ onPermit: ((input: Input) => Permission) | null = null;
  /** @internal */ onBind: ((input: Input, out: Binding) => void) | null = null;
  /** @internal */ onTable: ((pod: Row, node: Row) => Judgement) | null = null;
  /** @internal */ onReconcile: ((input: Input, out: Plan) => void) | null = null;
  /** @internal */ onNodeAdmission: ((input: Input) => Refusal | null) | null = null;
  /** @internal */ others: Map<i32, Answer> = new Map();
  /** @internal */ fields: Map<i32, string[]> = new Map();
  /** @internal */ hooks: Map<i32, Obj> = new Map();
  /** @internal */ needed: string[] = [];
  /** @internal */ groupings: Obj | null = null;
  /** @internal */ width: i32 = 0;
  private last: Obj = new Obj();

  constructor(public name: string, public version: string) { plugin = this; }

  private hook(op: i32, fields: string[], point: string = pointOf(op)): Obj {
    const h = new Obj().set("op", op).set("point", point).set("encoding", "flat").set("fields", fields);
    this.fields.set(op, fields);
    this.hooks.set(op, h);
    this.last = h;
    return h;
  }

  private gate(op: i32, f: (input: Input) => string, fields: string[]): Plugin {
    this.gates.set(op, f);
    this.hook(op, fields);
    return this;
  }

  private rank(op: i32, f: (input: Input) => i64, fields: string[]): Plugin {
    this.ranks.set(op, f);
    this.hook(op, fields);
    return this;
  }

  private notice(op: i32, f: (input: Input) => void, fields: string[]): Plugin {
    this.notices.set(op, f);
    this.hook(op, fields);
    return this;
  }

  // What the hook named last says of itself besides its fields:

  /** Its answer depends on the fields and the settings only, so that the host may remember it; for authorize, and for
   * preFilter, filter and postFilter, where one pod then speaks for others like it. */
  pure(): Plugin { this.last.set("pure", true); return this; }
  /** What its call changes besides answering, by host functions: "None", "NoneOnDryRun" (it looks at
   * dryRun, too) or "Some"; for mutate and validate. */
  sideEffects(word: string): Plugin { this.last.set("sideEffects", word); return this; }
  /** What may change its mind about a pod that it refused; for scheduling. None: any of them.
   * abi.yaml: begin events
   * "nodeAdded" (a node came),
   * "nodeAllocatableGrew" (a node has more to give),
   * "nodeLabelsChanged" (a node's labels changed),
   * "nodeTaintsChanged" (a node's taints changed),
   * "podRemoved" (a pod has gone),
   * "podBound" (a pod was bound),
   * "volumesChanged" (volumes, claims or classes changed),
   * "podChanged" (the pod itself changed),
   * "nodeRemoved" (a node was deleted),
   * abi.yaml: end events
   */
  events(names: string[]): Plugin { this.last.set("events", names); return this; }
  /** Names for places that depend on the kind of object: new Obj().set("@replicas",
   * new Obj().set("Deployment", "spec.replicas").set("*", "spec.size")) makes object.@replicas a field; for mutate and validate. */
  alternatives(aliases: Obj): Plugin { this.last.set("alternatives", aliases); return this; }

  /** Takes settings: the function is called with the entry's before anything else, and
   * answers why they are refused, or null. It may name hooks anew, whose fields depend on the settings. */
  settings(f: (settings: Value) => string | null): Plugin { this.configure = f; return this; }
  /** Gives a JSON schema of the settings, as JSON: the host holds an entry's settings against it before the function is
   * called, and names the field that is wrong. */
  settingsSchema(schema: string): Plugin { this.schema = schema; return this; }
  /** Names a host function that the plugin cannot do without. */
  needs(name: string): Plugin { this.needed.push(name); return this; }
  /** Tells pods apart by what is written in them: value is pod.metadata.namespace, pod.metadata.labels["..."] or
   * pod.metadata.annotations["..."]; names has the group of each value (new Obj().set("red", "a")), at most 1024; other is the group
   * of pods with another value, or none ("": they are in no group). The pods of a group have their usage counted, by the
   * host: preFilter, queueSort and postFilter read the fields group (its name), usage (of the pod's group), groups (of all, by
   * name), others (of pods in none) and total (what the nodes have). A usage has requested, leaving and promised: amounts, as
   * requests are. With groups, queueSort ranks groups: pod is the first one of a group that waits. */
  groups(value: string, names: Obj, other: string = ""): Plugin {
    this.groupings = new Obj().set("of", value).set("names", names).set("other", other);
    return this;
  }
  /** The hook at admission.mutate. */
  mutate(f: Admission, fields: string[] = [], match: Raw[] = []): Plugin {
    this.onMutate = f;
    this.hook(Op.Mutate, fields).set("match", match);
    return this;
  }
  /** The hook at admission.validate. */
  validate(f: Admission, fields: string[] = [], match: Raw[] = []): Plugin {
    this.onValidate = f;
    this.hook(Op.Validate, fields).set("match", match);
    return this;
  }
  /** The hook at customresource.convert: it brings a custom resource (object) into the version that desiredAPIVersion
   * names, by changes; the object has that apiVersion already. deny fails the conversion. */
  convert(f: Admission, fields: string[] = [], match: Raw[] = []): Plugin {
    this.onConvert = f;
    this.hook(Op.Convert, fields).set("match", match);
    return this;
  }
  /** The hook at customresource.validate: writes of custom resources that their schema has nothing against. */
  validateCustom(f: Admission, fields: string[] = [], match: Raw[] = []): Plugin {
    this.onValidateCustom = f;
    this.hook(Op.ValidateCustom, fields).set("match", match);
    return this;
  }
  /** The hook at authorization. The input has the names of a SubjectAccessReview's spec. */
  authorize(f: (input: Input) => Verdict, fields: string[] = []): Plugin {
    this.onAuthorize = f;
    this.hook(Op.Authorize, fields);
    return this;
  }
  /** The hook at scheduling.preEnqueue, before a pod is tried: what it waits for, or "". */
  preEnqueue(f: (input: Input) => string, fields: string[] = []): Plugin { return this.gate(Op.PreEnqueue, f, fields); }
  /** The hook at scheduling.queueSort: the highest goes first. */
  queueSort(f: (input: Input) => i64, fields: string[] = []): Plugin { return this.rank(Op.QueueSort, f, fields); }
  /** The hook at scheduling.preFilter, once a cycle before all nodes. */
  preFilter(f: (input: Input, out: Selection) => void, fields: string[] = []): Plugin {
    this.onPreFilter = f;
    this.hook(Op.PreFilter, fields);
    return this;
  }
  /** The hook at scheduling.filter: "" where the pod fits, else the reason; see forGood. */
  filter(f: (input: Input) => string, fields: string[] = []): Plugin { return this.gate(Op.Filter, f, fields); }
  /** The hook at scheduling.postFilter: no node was left. */
  postFilter(f: (input: Input, out: Nomination) => void, fields: string[] = []): Plugin {
    this.onPostFilter = f;
    this.hook(Op.PostFilter, fields);
    return this;
  }
  /** The hook at scheduling.preScore, once a cycle with the nodes that are left. */
  preScore(f: (input: Input, out: Preparation) => void, fields: string[] = []): Plugin {
    this.onPreScore = f;
    this.hook(Op.PreScore, fields);
    return this;
  }
  /** The hook at scheduling.score: 0 to 100. */
  score(f: (input: Input) => i64, fields: string[] = []): Plugin { return this.rank(Op.Score, f, fields); }
  /** The hook at scheduling.normalize: it changes the plugin's scores of all nodes, in the order of the field
   * "nodes", to what they are to be among each other, 0 to 100. */
  normalize(f: (input: Input, scores: i64[]) => void, fields: string[] = []): Plugin {
    if (fields.length && !fields.includes("scores")) fields.push("scores");
    this.onNormalize = f;
    this.hook(Op.Normalize, fields);
    return this;
  }
  /** The hook at scheduling.reserve: a node was chosen (nodeName); why it is given up, or "". */
  reserve(f: (input: Input) => string, fields: string[] = []): Plugin { return this.gate(Op.Reserve, f, fields); }
  /** The hook at scheduling.unreserve: the choice came to nothing. */
  unreserve(f: (input: Input) => void, fields: string[] = []): Plugin { return this.notice(Op.Unreserve, f, fields); }
  /** The hook at scheduling.permit, before binding. */
  permit(f: (input: Input) => Permission, fields: string[] = []): Plugin {
    this.onPermit = f;
    this.hook(Op.Permit, fields);
    return this;
  }
  /** The hook at scheduling.preBind, just before binding: why the place is given up, or "". */
  preBind(f: (input: Input) => string, fields: string[] = []): Plugin { return this.gate(Op.PreBind, f, fields); }
  /** The hook at scheduling.bind. */
  bind(f: (input: Input, out: Binding) => void, fields: string[] = []): Plugin {
    this.onBind = f;
    this.hook(Op.Bind, fields);
    return this;
  }
  /** The hook at scheduling.postBind: the pod is bound. */
  postBind(f: (input: Input) => void, fields: string[] = []): Plugin { return this.notice(Op.PostBind, f, fields); }
  /** The hook at scheduling.table: all nodes are judged in one call. */
  table(judge: (pod: Row, node: Row) => Judgement, columns: Column[], pod: Column[] = [], reasons: string[] = []): Plugin {
    this.onTable = judge;
    this.width = columns.length;
    this.hook(Op.Table, []).set("columns", columns).set("pod", pod).set("reasons", reasons);
    return this;
  }
  /** The hook at reconcile, with the kind that it reconciles and those that it makes. */
  reconcile(f: (input: Input, out: Plan) => void, primary: Raw, owned: Raw[], fields: string[] = []): Plugin {
    this.onReconcile = f;
    this.hook(Op.Reconcile, fields).set("primary", primary).set("owned", owned);
    return this;
  }
  /** The hook at nodeadmission: why the node does not run the pod, or null. */
  nodeAdmission(f: (input: Input) => Refusal | null, fields: string[] = []): Plugin {
    this.onNodeAdmission = f;
    this.hook(Op.NodeAdmission, fields);
    return this;
  }
  /** A hook at any other point; op is from 100 on, the answer is JSON. */
  other(op: i32, point: string, f: Answer, fields: string[] = []): Plugin {
    this.others.set(op, f);
    this.hook(op, fields, point);
    return this;
  }
}

let plugin: Plugin | null = null;
let room: StaticArray<u8> = new StaticArray<u8>(4096);
let rows: StaticArray<u8> = new StaticArray<u8>(0);
let verdicts: StaticArray<u8> = new StaticArray<u8>(0);
const answer = new Writer(), asked = new Input(nothing, none), decision = new Decision();

/** What the calls since the last collection have made, in objects, about: a guess, as nothing
 * tells what the author's own functions make. */
let made: i32 = 0;
let pages: i32 = 0;

function written(w: Writer, failed: bool): u64 {
  made += 32;
  return <u64>w.at << 32 | <u64>w.length | (failed ? 0x80000000 : 0);
}

function give(text: string, failed: bool = false): u64 { return written(answer.reset().raw(text), failed); }

function error(message: string): u64 { return give(message, true); }

/** What the host gets of a function: the text itself or, in a component, the place where it stands. */
function hand(text: u64, described: bool): Handed {
  if (!COMPONENT) return <Handed>text;
  const failed = !described && (text & 0x80000000) != 0, at = <u32>(text >> 32), length = <u32>text & 0x7fffffff;
  store<u64>(place, 0);
  store<u32>(place, described ? at : failed ? 1 : 0); // a string, or a result<option<list<u8>>, string>
  store<u32>(place, described ? length : failed ? at : length > 0 ? 1 : 0, 4);
  store<u32>(place, failed ? length : at, 8);
  store<u32>(place, length, 12);
  return <Handed>place;
}

/** The export of this name: every plugin exports it again. */
export function describe(): Handed {
  return hand(manifested(), true);
}

function manifested(): u64 {
  const p = plugin;
  if (!p) return error("the module makes no Plugin");
  const manifest = new Obj().set("abi", 1).set("name", p.name).set("version", p.version).set("settings", p.configure != null)
    .set("needs", p.needed).set("hooks", p.hooks.values()), groups = p.groupings;
  if (groups) manifest.set("groups", groups as Obj);
  if (p.schema.length) manifest.set("settingsSchema", new Raw(p.schema));
  return give(manifest.toString());
}

/** The export of this name: every plugin exports it again. */
export function alloc(n: i32): i32 {
  if ((made += 4) >= 2048 || n > 65536 || memory.size() > pages) { // nothing of a call before is on the stack here
    __collect();
    made = 0;
    pages = memory.size();
  }
  lent = 0;
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

/** What a step of scheduling answers; an empty object is no answer. */
function step(o: Obj): u64 { return o.empty ? 0 : give(o.toString()); }

function schedule(p: Plugin, op: i32, input: Input): u64 {
  if (p.gates.has(op)) {
    lasting = false;
    const reason = p.gates.get(op)(input);
    if (!reason.length) return 0;
    const o = new Obj().set(op == Op.Filter ? "fits" : "allowed", false).set("reasons", [reason]);
    return step(op == Op.Filter && lasting ? o.set("unresolvable", true) : o);
  }
  if (p.ranks.has(op)) return give(p.ranks.get(op)(input).toString());
  if (p.notices.has(op)) {
    p.notices.get(op)(input);
    return 0;
  }
  if (op == Op.PreFilter) {
    const f = p.onPreFilter, out = new Selection();
    if (f) f(input, out);
    return step(out.answer());
  }
  if (op == Op.PostFilter) {
    const f = p.onPostFilter, out = new Nomination();
    if (f) f(input, out);
    return step(out.answer());
  }
  if (op == Op.PreScore) {
    const f = p.onPreScore, out = new Preparation();
    if (f) f(input, out);
    return step(out.answer());
  }
  if (op == Op.Normalize) {
    const f = p.onNormalize, given = input.get("scores"), scores = new Array<i64>(given.length);
    for (let i = 0; i < scores.length; i++) scores[i] = given.at(i).int;
    if (f) f(input, scores);
    for (let i = 0; i < scores.length; i++) scores[i] = min<i64>(max<i64>(scores[i], 0), 100);
    return give(json(scores));
  }
  if (op == Op.Permit) {
    const f = p.onPermit, v = f ? f(input) : proceed();
    if (!v.decision.length) return 0;
    const o = new Obj().set("decision", v.decision).set("reasons", [v.reason]);
    return step(v.seconds > 0 ? o.set("waitSeconds", v.seconds) : o);
  }
  if (op == Op.Bind) {
    const f = p.onBind, out = new Binding();
    if (f) f(input, out);
    return step(out.answer());
  }
  return give(p.others.get(op)(input));
}

/** The export of this name: every plugin exports it again. */
export function call(op: i32, at: i32, n: i32): Handed {
  failure = null;
  const given = run(op, at, n), message = failure;
  return hand(message ? error(message) : given, false);
}

function run(op: i32, at: i32, n: i32): u64 {
  const p = plugin;
  if (!p) return error("the module makes no Plugin");
  const data = <usize>at;
  if (op == Op.Settings) {
    const f = p.configure;
    if (!f) return error("the plugin takes no settings");
    const refusal = f(parseAt(data, n));
    return refusal ? error(refusal) : 0;
  }
  if (op == Op.Table) {
    const f = p.onTable;
    if (f && n >= 8) return judge(p, f, data);
  }
  if (!p.fields.has(op)) return error("the plugin has no such operation");
  const input = asked.lend(n >= 8 ? view(data, load<u64>(data), null) : nothing, p.fields.get(op));
  if (op == Op.Mutate || op == Op.Validate || op == Op.Convert || op == Op.ValidateCustom) {
    const f = op == Op.Mutate ? p.onMutate : op == Op.Validate ? p.onValidate : op == Op.Convert ? p.onConvert : p.onValidateCustom, out = decision.reset();
    if (f) f(input, out);
    return out.give();
  }
  if (op == Op.Authorize) {
    const f = p.onAuthorize;
    const v = f ? f(input) : noOpinion();
    return v.decision.length ? give(new Obj().set("decision", v.decision).set("reason", v.reason).toString()) : 0;
  }
  if (op == Op.Reconcile) {
    const f = p.onReconcile, out = new Plan();
    if (f) f(input, out);
    return out.give();
  }
  if (op == Op.NodeAdmission) {
    const f = p.onNodeAdmission;
    const r = f ? f(input) : null;
    return r ? give('{"admitted":false,"reason":' + quote(r.reason) + ',"message":' + quote(r.message) + "}") : 0;
  }
  return schedule(p, op, input);
}
