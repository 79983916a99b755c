// SPDX-License-Identifier: Apache-2.0

//! The Zig SDK for wasmplane plugins.
//!
//! A plugin is functions, and a comptime block that names them:
//!
//!     const wp = @import("wasmplane");
//!
//!     const In = wp.Input(&.{"object.metadata.labels"});
//!
//!     fn decide(in: In, out: *wp.Decision) void {
//!         if (!in.get("object.metadata.labels").get("owner").exists())
//!             out.denyField("metadata.labels", "name an owner", .{});
//!     }
//!
//!     comptime {
//!         wp.plugin(.{
//!             .name = "my-plugin",
//!             .version = "0.1.0",
//!             .validate = wp.admission(decide, &.{.{ .operations = &.{"CREATE"}, .groups = &.{""}, .resources = &.{"pods"} }}),
//!         });
//!     }
//!
//! The fields that a hook reads are part of its input's type: the host sends them
//! and nothing else, each is found by an index that is known when the plugin is
//! compiled, and asking for another is an error of compilation. Values are views of the input;
//! nothing is parsed or copied.
//!
//! Memory that a call takes (`print`, `allocator`) is given back when the next one
//! begins; what is taken while settings are passed stays. One function of a plugin runs at a time.

const std = @import("std");

const component = false; // `wasmplane plugin build --component` builds with true here

// ---- Memory ----

extern var __heap_base: u8;
var floor: usize = 0;
var top: usize = 0;

fn start() void {
    if (top == 0) {
        floor = std.mem.alignForward(usize, @intFromPtr(&__heap_base), 16);
        top = floor;
    }
}

fn rewind() void {
    start();
    top = floor;
}

fn reach(end: usize) bool {
    const have = @wasmMemorySize(0) << 16;
    if (end > have and @wasmMemoryGrow(0, (end - have + 0xffff) >> 16) < 0) return false;
    top = end;
    return true;
}

fn take(_: *anyopaque, len: usize, alignment: std.mem.Alignment, _: usize) ?[*]u8 {
    start();
    const at = alignment.forward(top);
    return if (len < 1 << 30 and reach(at + len)) @ptrFromInt(at) else null;
}

fn resize(_: *anyopaque, memory: []u8, _: std.mem.Alignment, len: usize, _: usize) bool {
    if (@intFromPtr(memory.ptr) + memory.len != top) return len <= memory.len;
    return reach(@intFromPtr(memory.ptr) + len);
}

fn remap(at: *anyopaque, memory: []u8, alignment: std.mem.Alignment, len: usize, r: usize) ?[*]u8 {
    return if (resize(at, memory, alignment, len, r)) memory.ptr else null;
}

fn release(_: *anyopaque, _: []u8, _: std.mem.Alignment, _: usize) void {}

/// Memory until the next call; nothing needs to be freed.
pub const allocator: std.mem.Allocator = .{ .ptr = undefined, .vtable = &.{ .alloc = take, .resize = resize, .remap = remap, .free = release } };

const Text = std.ArrayList(u8);

/// Without memory nothing goes on: a trap is a failure of the plugin, as it should be.
fn must(result: anytype) @typeInfo(@TypeOf(result)).error_union.payload {
    return result catch @trap();
}

fn put(t: *Text, s: []const u8) void {
    must(t.appendSlice(allocator, s));
}

/// Formats, as std.fmt does. The text is valid until the next call.
pub fn print(comptime fmt: []const u8, args: anytype) []const u8 {
    return must(std.fmt.allocPrint(allocator, fmt, args));
}

/// Writes a key as part of a patch's path: slashes and tildes are escaped.
pub fn token(key: []const u8) []const u8 {
    var t: Text = .empty;
    for (key) |c| switch (c) {
        '~' => put(&t, "~0"),
        '/' => put(&t, "~1"),
        else => put(&t, &.{c}),
    };
    return t.items;
}

// ---- Values ----

const Kind = enum(u4) { null, false, true, int, float, string, array, object, absent, _ };

const Cell = packed struct(u64) { offset: u32 = 0, length: u28 = 0, kind: Kind };

/// A value of the input. What is absent answers every method with the empty value.
pub const Value = struct {
    base: [*]const u8,
    cell: Cell,

    /// What is not there.
    pub const absent: Value = .{ .base = undefined, .cell = .{ .kind = .absent } };

    fn child(v: Value, i: usize) Value {
        const cells: [*]const Cell = @ptrCast(@alignCast(v.base + v.cell.offset));
        return .{ .base = v.base, .cell = cells[i] };
    }

    fn word(v: Value, comptime T: type) T {
        const place: *const T = @ptrCast(@alignCast(v.base + v.cell.offset));
        return place.*;
    }

    /// Whether the value is there; null is.
    pub fn exists(v: Value) bool {
        return v.cell.kind != .absent;
    }
    /// Whether the value is there, and null.
    pub fn isNull(v: Value) bool {
        return v.cell.kind == .null;
    }
    /// A string's text.
    pub fn str(v: Value) []const u8 {
        return if (v.cell.kind == .string) (v.base + v.cell.offset)[0..v.cell.length] else "";
    }
    /// Whether the value is this string.
    pub fn eql(v: Value, text: []const u8) bool {
        return v.cell.kind == .string and std.mem.eql(u8, v.str(), text);
    }
    /// Whether the value is true.
    pub fn isTrue(v: Value) bool {
        return v.cell.kind == .true;
    }
    /// An integer, or the whole part of a number.
    pub fn int(v: Value) i64 {
        return switch (v.cell.kind) {
            .int => v.word(i64),
            .float => std.math.lossyCast(i64, v.word(f64)),
            else => 0,
        };
    }
    /// A number.
    pub fn float(v: Value) f64 {
        return switch (v.cell.kind) {
            .int => @floatFromInt(v.word(i64)),
            .float => v.word(f64),
            else => 0,
        };
    }
    /// The number of items of an array, or of keys of an object.
    pub fn len(v: Value) usize {
        return if (v.cell.kind == .array or v.cell.kind == .object) v.cell.length else 0;
    }
    /// An item of an array.
    pub fn at(v: Value, i: usize) Value {
        return if (v.cell.kind == .array and i < v.cell.length) v.child(i) else .absent;
    }
    /// The value of a key of an object.
    pub fn get(v: Value, key: []const u8) Value {
        var it = v.entries();
        while (it.next()) |e| if (std.mem.eql(u8, e.key, key)) return e.value;
        return .absent;
    }
    /// The value at the end of a path of names and dots: "spec.replicas".
    pub fn path(v: Value, names: []const u8) Value {
        var out = v;
        var it = std.mem.splitScalar(u8, names, '.');
        while (it.next()) |name| out = out.get(name);
        return out;
    }
    /// Whether an array has this string.
    pub fn contains(v: Value, text: []const u8) bool {
        var it = v.items();
        while (it.next()) |i| if (i.eql(text)) return true;
        return false;
    }
    /// The items of an array: `while (it.next()) |item|`.
    pub fn items(v: Value) Items {
        return .{ .of = v };
    }
    /// The keys of an object, with their values: `while (it.next()) |e|`.
    pub fn entries(v: Value) Entries {
        return .{ .of = v };
    }
};

/// Goes through an array.
pub const Items = struct {
    of: Value,
    i: usize = 0,

    /// The next item; null at the end.
    pub fn next(it: *Items) ?Value {
        if (it.of.cell.kind != .array or it.i == it.of.cell.length) return null;
        it.i += 1;
        return it.of.child(it.i - 1);
    }
};

/// Goes through an object.
pub const Entries = struct {
    of: Value,
    i: usize = 0,

    /// A key and its value.
    pub const Entry = struct { key: []const u8, value: Value };

    /// The next key and value; null at the end.
    pub fn next(it: *Entries) ?Entry {
        if (it.of.cell.kind != .object or it.i == it.of.cell.length) return null;
        it.i += 1;
        return .{ .key = it.of.child(2 * it.i - 2).str(), .value = it.of.child(2 * it.i - 1) };
    }
};

/// What a hook is asked about: the fields that it declares.
pub fn Input(comptime declared: []const []const u8) type {
    return struct {
        root: Value,

        pub const fields = declared;

        /// The value of a field, by the path under which it was declared.
        pub fn get(in: @This(), comptime name: []const u8) Value {
            @setEvalBranchQuota(100_000);
            const i = comptime for (fields, 0..) |f, i| {
                if (std.mem.eql(u8, f, name)) break i;
            } else @compileError("the hook's input has no field " ++ name);
            return in.root.at(i);
        }
    };
}

/// The whole document, for a hook that declares no fields.
pub const Document = struct {
    root: Value,

    pub const fields: []const []const u8 = &.{};

    /// The value at the end of a path of names and dots.
    pub fn get(in: Document, names: []const u8) Value {
        return in.root.path(names);
    }
};

// ---- Writing: any value becomes JSON. ----

fn quote(t: *Text, s: []const u8) void {
    put(t, "\"");
    var from: usize = 0;
    for (s, 0..) |c, i| {
        if (c >= 0x20 and c != '"' and c != '\\') continue;
        put(t, s[from..i]);
        from = i + 1;
        if (c == '"' or c == '\\') {
            put(t, &.{ '\\', c });
        } else {
            const hex = "0123456789abcdef";
            put(t, &.{ '\\', 'u', '0', '0', hex[c >> 4], hex[c & 15] });
        }
    }
    put(t, s[from..]);
    put(t, "\"");
}

fn number(t: *Text, f: f64) void {
    if (std.math.isNan(f) or std.math.isInf(f)) return put(t, "null");
    must(t.print(allocator, "{d}", .{f}));
}

fn writeValue(t: *Text, v: Value) void {
    switch (v.cell.kind) {
        .false => put(t, "false"),
        .true => put(t, "true"),
        .int => must(t.print(allocator, "{d}", .{v.int()})),
        .float => number(t, v.float()),
        .string => quote(t, v.str()),
        .array => {
            put(t, "[");
            for (0..v.len()) |i| {
                if (i > 0) put(t, ",");
                writeValue(t, v.child(i));
            }
            put(t, "]");
        },
        .object => {
            put(t, "{");
            for (0..v.len()) |i| {
                if (i > 0) put(t, ",");
                quote(t, v.child(2 * i).str());
                put(t, ":");
                writeValue(t, v.child(2 * i + 1));
            }
            put(t, "}");
        },
        else => put(t, "null"),
    }
}

fn write(t: *Text, v: anytype) void {
    const T = @TypeOf(v);
    if (T == Value) return writeValue(t, v);
    if (T == Raw) return put(t, v.json);
    switch (@typeInfo(T)) {
        .bool => put(t, if (v) "true" else "false"),
        .int, .comptime_int => must(t.print(allocator, "{d}", .{v})),
        .float, .comptime_float => number(t, v),
        .null => put(t, "null"),
        .optional => if (v) |x| write(t, x) else put(t, "null"),
        .@"enum", .enum_literal => quote(t, @tagName(v)),
        .pointer => |p| switch (p.size) {
            .slice => if (p.child == u8) quote(t, v) else list(t, v),
            .one => if (@typeInfo(p.child) == .array) {
                const s: []const std.meta.Elem(T) = v;
                write(t, s);
            } else write(t, v.*),
            else => @compileError("a slice was expected, found " ++ @typeName(T)),
        },
        .array => list(t, &v),
        .@"struct" => |s| if (s.is_tuple and s.fields.len > 0) {
            put(t, "[");
            inline for (v, 0..) |item, i| {
                if (i > 0) put(t, ",");
                write(t, item);
            }
            put(t, "]");
        } else {
            put(t, "{");
            inline for (s.fields, 0..) |f, i| {
                put(t, (if (i > 0) ",\"" else "\"") ++ f.name ++ "\":");
                write(t, @field(v, f.name));
            }
            put(t, "}");
        },
        else => @compileError("this cannot be written as JSON: " ++ @typeName(T)),
    }
}

fn list(t: *Text, items: anytype) void {
    put(t, "[");
    for (items, 0..) |item, i| {
        if (i > 0) put(t, ",");
        write(t, item);
    }
    put(t, "]");
}

/// Any value as JSON: structs, slices, strings, numbers, optionals, Values.
pub fn json(v: anytype) []const u8 {
    var t: Text = .empty;
    write(&t, v);
    return t.items;
}

/// JSON that is written as it is.
pub const Raw = struct { json: []const u8 };

fn append(t: *Text, v: anytype) void {
    if (t.items.len > 0) put(t, ",");
    write(t, v);
}

// ---- Parsing: JSON becomes cells, so that it is read like an input. ----

const Parser = struct {
    s: []const u8,
    i: usize = 0,

    const Error = error{ NotJSON, OutOfMemory };
    const base: [*]const u8 = @ptrCast(&__heap_base);

    fn make(kind: Kind, length: usize, at: usize) Value {
        return .{ .base = base, .cell = .{ .kind = kind, .length = @intCast(length), .offset = @intCast(at - @intFromPtr(base)) } };
    }

    fn space(p: *Parser) void {
        while (p.i < p.s.len and std.mem.indexOfScalar(u8, " \t\r\n", p.s[p.i]) != null) p.i += 1;
    }

    fn next(p: *Parser, c: u8) bool {
        p.space();
        if (p.i >= p.s.len or p.s[p.i] != c) return false;
        p.i += 1;
        return true;
    }

    fn value(p: *Parser, depth: usize) Error!Value {
        p.space();
        if (p.i >= p.s.len or depth > 100) return error.NotJSON;
        switch (p.s[p.i]) {
            '{' => return p.several(depth, true),
            '[' => return p.several(depth, false),
            '"' => return p.string(),
            else => {},
        }
        inline for (.{ .{ "true", Kind.true }, .{ "false", Kind.false }, .{ "null", Kind.null } }) |word| {
            if (std.mem.startsWith(u8, p.s[p.i..], word[0])) {
                p.i += word[0].len;
                return make(word[1], 0, @intFromPtr(base));
            }
        }
        const from = p.i;
        while (p.i < p.s.len and std.mem.indexOfScalar(u8, "+-.eE0123456789", p.s[p.i]) != null) p.i += 1;
        const digits = p.s[from..p.i];
        if (std.fmt.parseInt(i64, digits, 10)) |n| {
            const at = try allocator.create(i64);
            at.* = n;
            return make(.int, 8, @intFromPtr(at));
        } else |_| {}
        const at = try allocator.create(f64);
        at.* = std.fmt.parseFloat(f64, digits) catch return error.NotJSON;
        return make(.float, 8, @intFromPtr(at));
    }

    fn several(p: *Parser, depth: usize, comptime object: bool) Error!Value {
        p.i += 1;
        const close = if (object) '}' else ']';
        var cells: std.ArrayList(Cell) = .empty;
        if (!p.next(close)) while (true) {
            if (object) {
                p.space();
                if (p.i >= p.s.len or p.s[p.i] != '"') return error.NotJSON;
                try cells.append(allocator, (try p.string()).cell);
                if (!p.next(':')) return error.NotJSON;
            }
            try cells.append(allocator, (try p.value(depth + 1)).cell);
            if (p.next(close)) break;
            if (!p.next(',')) return error.NotJSON;
        };
        const n = if (object) cells.items.len / 2 else cells.items.len;
        return make(if (object) .object else .array, n, if (n > 0) @intFromPtr(cells.items.ptr) else @intFromPtr(base));
    }

    fn string(p: *Parser) Error!Value {
        var t: Text = .empty;
        try t.ensureTotalCapacity(allocator, 16);
        p.i += 1;
        while (p.i < p.s.len) {
            const c = p.s[p.i];
            p.i += 1;
            if (c == '"') return make(.string, t.items.len, @intFromPtr(t.items.ptr));
            if (c != '\\') {
                try t.append(allocator, c);
                continue;
            }
            if (p.i >= p.s.len) break;
            p.i += 1;
            switch (p.s[p.i - 1]) {
                'n' => try t.append(allocator, '\n'),
                't' => try t.append(allocator, '\t'),
                'r' => try t.append(allocator, '\r'),
                'b' => try t.append(allocator, 8),
                'f' => try t.append(allocator, 12),
                'u' => {
                    var bytes: [4]u8 = undefined;
                    const n = std.unicode.utf8Encode(try p.rune(), &bytes) catch return error.NotJSON;
                    try t.appendSlice(allocator, bytes[0..n]);
                },
                '"', '\\', '/' => |e| try t.append(allocator, e),
                else => return error.NotJSON,
            }
        }
        return error.NotJSON;
    }

    fn hex(p: *Parser) Error!u21 {
        if (p.i + 4 > p.s.len) return error.NotJSON;
        p.i += 4;
        return std.fmt.parseInt(u16, p.s[p.i - 4 .. p.i], 16) catch error.NotJSON;
    }

    fn rune(p: *Parser) Error!u21 {
        const r = try p.hex();
        if (r < 0xd800 or r > 0xdfff) return r;
        if (r < 0xdc00 and std.mem.startsWith(u8, p.s[p.i..], "\\u")) {
            p.i += 2;
            const low = try p.hex();
            if (low >= 0xdc00 and low <= 0xdfff) return 0x10000 + ((r - 0xd800) << 10 | (low - 0xdc00));
        }
        return 0xfffd;
    }
};

/// Parses JSON; null where it is none.
pub fn parse(text: []const u8) ?Value {
    var p: Parser = .{ .s = text };
    const v = p.value(0) catch return null;
    p.space();
    return if (p.i == text.len) v else null;
}

/// Reads settings into the type of a variable. What is not given keeps its
/// default; a field without one is required. It answers what is wrong.
fn decode(comptime T: type, v: Value, into: *T, comptime where: []const u8) ?[]const u8 {
    if (T == Value) {
        into.* = v;
        return null;
    }
    const kind = v.cell.kind;
    switch (@typeInfo(T)) {
        .bool => {
            if (kind != .true and kind != .false) return "settings: " ++ where ++ ": true or false was expected";
            into.* = kind == .true;
        },
        .int => {
            if (kind != .int) return "settings: " ++ where ++ ": a whole number was expected";
            into.* = std.math.cast(T, v.int()) orelse return "settings: " ++ where ++ ": the number is out of range";
        },
        .float => {
            if (kind != .int and kind != .float) return "settings: " ++ where ++ ": a number was expected";
            into.* = @floatCast(v.float());
        },
        .optional => |o| {
            if (kind == .absent or kind == .null) {
                into.* = null;
                return null;
            }
            var inner: o.child = undefined;
            if (decode(o.child, v, &inner, where)) |wrong| return wrong;
            into.* = inner;
        },
        .pointer => |p| {
            if (p.size != .slice) @compileError("settings: a slice was expected, found " ++ @typeName(T));
            if (p.child == u8) {
                if (kind != .string) return "settings: " ++ where ++ ": a string was expected";
                into.* = v.str();
                return null;
            }
            if (kind != .array) return "settings: " ++ where ++ ": an array was expected";
            const out = must(allocator.alloc(p.child, v.len()));
            for (out, 0..) |*item, i| if (decode(p.child, v.at(i), item, where ++ "[]")) |wrong| return wrong;
            into.* = out;
        },
        .@"struct" => |s| {
            if (kind != .object) return "settings: " ++ (if (where.len > 0) where ++ ": " else "") ++ "an object was expected";
            inline for (s.fields) |f| {
                const name = if (where.len > 0) where ++ "." ++ f.name else f.name;
                const found = v.get(f.name);
                if (found.exists() or (f.defaultValue() == null and @typeInfo(f.type) == .optional)) {
                    if (decode(f.type, found, &@field(into, f.name), name)) |wrong| return wrong;
                } else if (f.defaultValue()) |d| {
                    @field(into, f.name) = d;
                } else return "settings: " ++ name ++ " is missing";
            }
        },
        else => @compileError("settings cannot be of type " ++ @typeName(T)),
    }
    return null;
}

// ---- Answers ----

/// Why the call that runs fails, once it is known.
var failure: ?[]const u8 = null;

/// Makes the call that runs fail, whatever its hook answers: the failure policy of the
/// plugin's entry decides then. It is for what a hook cannot go on without.
pub fn fail(comptime fmt: []const u8, args: anytype) void {
    failure = print(fmt, args);
}

/// What an admission hook decides: nothing, so far, lets the request through.
pub const Decision = struct {
    message: ?[]const u8 = null,
    field: []const u8 = "",
    status: u16 = 0,
    kind: []const u8 = "",
    causes: Text = .empty,
    patch: Text = .empty,
    object: []const u8 = "",
    warnings: Text = .empty,
    annotations: Text = .empty,

    /// Refuses the request.
    pub fn deny(d: *Decision, comptime fmt: []const u8, args: anytype) void {
        d.message = print(fmt, args);
    }
    /// Refuses the request because of a field, such as "spec.containers[0].image".
    pub fn denyField(d: *Decision, field: []const u8, comptime fmt: []const u8, args: anytype) void {
        d.deny(fmt, args);
        d.field = field;
    }
    /// Refuses the request because of a field, beside what else is wrong: a user learns of everything at once.
    pub fn cause(d: *Decision, field: []const u8, comptime fmt: []const u8, args: anytype) void {
        if (d.message == null) d.message = "";
        append(&d.causes, .{ .field = field, .message = print(fmt, args) });
    }
    /// Sets the HTTP status of a refusal; 403 otherwise.
    pub fn code(d: *Decision, status: u16) void {
        d.status = status;
    }
    /// Sets the refusal's metav1.StatusReason: "Invalid", "Conflict", ...
    pub fn reason(d: *Decision, word: []const u8) void {
        d.kind = word;
    }
    /// Fails: the entry's failure policy decides.
    pub fn fail(_: *Decision, comptime fmt: []const u8, args: anytype) void {
        failure = print(fmt, args);
    }
    /// Shows a warning to the user.
    pub fn warn(d: *Decision, comptime fmt: []const u8, args: anytype) void {
        append(&d.warnings, print(fmt, args));
    }
    /// Adds an annotation to the audit record.
    pub fn audit(d: *Decision, key: []const u8, comptime fmt: []const u8, args: anytype) void {
        append(&d.annotations, key);
        put(&d.annotations, ":");
        quote(&d.annotations, print(fmt, args));
    }
    /// Puts a value at a path of the object ("/metadata/labels/team"). What is missing
    /// on the way is made; "/spec/containers/[name=web]" finds an item by key.
    pub fn add(d: *Decision, path: []const u8, value: anytype) void {
        append(&d.patch, .{ .op = "add", .path = path, .value = value });
    }
    /// Replaces a value that is there.
    pub fn replace(d: *Decision, path: []const u8, value: anytype) void {
        append(&d.patch, .{ .op = "replace", .path = path, .value = value });
    }
    /// Removes a value that is there.
    pub fn remove(d: *Decision, path: []const u8) void {
        append(&d.patch, .{ .op = "remove", .path = path });
    }
    /// Takes a value from one path to another.
    pub fn move(d: *Decision, from: []const u8, path: []const u8) void {
        append(&d.patch, .{ .op = "move", .from = from, .path = path });
    }
    /// Makes the whole patch fail where another value is there.
    pub fn expect(d: *Decision, path: []const u8, value: anytype) void {
        append(&d.patch, .{ .op = "test", .path = path, .value = value });
    }
    /// Makes the object be as given, in the place of a patch; only a mutating hook of
    /// wp.Document may.
    pub fn setObject(d: *Decision, value: anytype) void {
        d.object = json(value);
    }

    fn encode(d: *Decision) i64 {
        if (d.message == null and d.object.len + d.patch.items.len + d.warnings.items.len + d.annotations.items.len == 0) return 0;
        var t: Text = .empty;
        put(&t, if (d.message != null) "{\"allowed\":false" else "{\"allowed\":true");
        if (d.message) |message| {
            part(&t, "message", message);
            if (d.field.len > 0) part(&t, "field", d.field);
            if (d.status != 0) part(&t, "code", d.status);
            if (d.causes.items.len > 0) within(&t, "causes", "[", d.causes.items, "]");
            if (d.kind.len > 0) part(&t, "reason", d.kind);
        } else {
            if (d.patch.items.len > 0) within(&t, "patch", "[", d.patch.items, "]");
            if (d.object.len > 0) within(&t, "object", "", d.object, "");
        }
        if (d.warnings.items.len > 0) within(&t, "warnings", "[", d.warnings.items, "]");
        if (d.annotations.items.len > 0) within(&t, "auditAnnotations", "{", d.annotations.items, "}");
        put(&t, "}");
        return give(t.items, false);
    }
};

fn part(t: *Text, name: []const u8, v: anytype) void {
    put(t, ",");
    quote(t, name);
    put(t, ":");
    write(t, v);
}

fn within(t: *Text, name: []const u8, open: []const u8, content: []const u8, close: []const u8) void {
    put(t, ",");
    quote(t, name);
    put(t, ":");
    put(t, open);
    put(t, content);
    put(t, close);
}

/// An authorizer's answer.
pub const Verdict = struct { decision: []const u8 = "", reason: []const u8 = "" };
/// Others decide.
pub const no_opinion: Verdict = .{};
/// Allows, for a reason.
pub fn allow(comptime fmt: []const u8, args: anytype) Verdict {
    return .{ .decision = "allow", .reason = print(fmt, args) };
}
/// Denies, for a reason.
pub fn deny(comptime fmt: []const u8, args: anytype) Verdict {
    return .{ .decision = "deny", .reason = print(fmt, args) };
}

/// Why a node does not run a pod: a word in CamelCase, and a sentence.
pub const Refusal = struct { reason: []const u8, message: []const u8 };

/// What is thought of one node.
pub const Judgement = enum(u8) {
    _,
    /// The pod may run there, with a score from 0 to 100.
    pub inline fn fits(score: i64) Judgement {
        const clipped: i64 = @min(@max(score, 0), 100);
        return @enumFromInt(@as(u8, @intCast(clipped + 1)));
    }
    /// Not now, for a reason by its index.
    pub inline fn unfit(reason: u6) Judgement {
        return @enumFromInt(@as(u8, 128) + reason);
    }
    /// Not there, whatever pods leave the node, for a reason by its index.
    pub inline fn never(reason: u6) Judgement {
        return @enumFromInt(@as(u8, 192) + reason);
    }
};

/// Whether a pod may run on a node. A filter may answer ?[]const u8, too: why not, null where it may.
pub const Fit = union(enum) { fits, unfit: []const u8, never: []const u8 };

/// What permit answers: the pod is bound; it and its place are held and the hook is asked again
/// within so many seconds, for 15 minutes at most; the place is given up.
pub const Permission = union(enum) {
    proceed,
    wait: struct { seconds: f64, reason: []const u8 = "" },
    reject: []const u8,
};

/// What a hook works out for the later ones of the same cycle.
pub const Preparation = struct {
    skipped: bool = false,
    state: []const u8 = "",

    /// Leaves the plugin's filter (after pre_filter) or score (after pre_score) out of this cycle.
    pub fn skip(p: *Preparation) void {
        p.skipped = true;
    }
    /// Hands a value to the plugin's later hooks of this cycle, which read it as "state".
    /// What an instance keeps in its own memory another does not see.
    pub fn keep(p: *Preparation, value: anytype) void {
        p.state = json(value);
    }

    fn parts(p: *Preparation, t: *Text) void {
        if (p.skipped) part(t, "skip", true);
        if (p.state.len > 0) within(t, "state", "", p.state, "");
    }

    fn encode(p: *Preparation) i64 {
        var t: Text = .empty;
        p.parts(&t);
        return objectOf(&t);
    }
};

/// What pre_filter answers: nothing, so far, leaves all nodes in.
pub const Selection = struct {
    preparation: Preparation = .{},
    nodes: ?Text = null,
    reasons: Text = .empty,
    for_good: bool = false,

    /// Narrows the search to the nodes that are named, one call for each.
    pub fn only(s: *Selection, node: []const u8) void {
        if (s.nodes == null) s.nodes = .empty;
        append(&s.nodes.?, node);
    }
    /// Narrows the search to no node at all.
    pub fn nowhere(s: *Selection) void {
        s.nodes = .empty;
    }
    /// Keeps the pod off every node, for now.
    pub fn refuse(s: *Selection, comptime fmt: []const u8, args: anytype) void {
        append(&s.reasons, print(fmt, args));
    }
    /// Keeps the pod off every node, whatever pods leave them.
    pub fn never(s: *Selection, comptime fmt: []const u8, args: anytype) void {
        s.for_good = true;
        s.refuse(fmt, args);
    }
    /// Leaves the plugin's filter out of this cycle.
    pub fn skip(s: *Selection) void {
        s.preparation.skip();
    }
    /// Hands a value to the plugin's later hooks of this cycle, which read it as "state".
    pub fn keep(s: *Selection, value: anytype) void {
        s.preparation.keep(value);
    }

    fn encode(s: *Selection) i64 {
        var t: Text = .empty;
        if (s.reasons.items.len > 0) {
            part(&t, "fits", false);
            if (s.for_good) part(&t, "unresolvable", true);
            within(&t, "reasons", "[", s.reasons.items, "]");
            return objectOf(&t);
        }
        s.preparation.parts(&t);
        if (s.nodes) |nodes| within(&t, "nodes", "[", nodes.items, "]");
        return objectOf(&t);
    }
};

/// An amount of a resource: "milliCPU", "memory", "ephemeralStorage", "pods", or an extended resource.
pub const Amount = struct { resource: []const u8, amount: i64 };

fn writeAmounts(t: *Text, given: []const Amount) void {
    put(t, "{\"scalar\":{");
    var own: Text = .empty;
    var first = true;
    for (given) |a| {
        for ([_][]const u8{ "milliCPU", "memory", "ephemeralStorage", "pods" }) |name| {
            if (!std.mem.eql(u8, name, a.resource)) continue;
            put(&own, ",");
            quote(&own, a.resource);
            put(&own, ":");
            write(&own, a.amount);
            break;
        } else {
            if (!first) put(t, ",");
            first = false;
            quote(t, a.resource);
            put(t, ":");
            write(t, a.amount);
        }
    }
    put(t, "}");
    put(t, own.items);
    put(t, "}");
}

/// Groups tell pods apart by what is written in them. The pods of a group have their usage counted, by the host:
/// pre_filter, queue_sort and post_filter read the fields "group" (its name), "usage" (of the pod's group), "groups" (of all, by
/// name), "others" (of pods in none) and "total" (what the nodes have). A usage has requested, leaving and promised: amounts,
/// as requests are. With groups, queue_sort ranks groups: pod is the first one of a group that waits.
pub const Groups = struct {
    /// pod.metadata.namespace, pod.metadata.labels["..."] or pod.metadata.annotations["..."].
    of: []const u8,
    /// Groups by the value, .{ "red", "a" }; several values may be one group. At most 1024.
    names: []const [2][]const u8 = &.{},
    /// The group of pods with another value, or none; "" = they are in no group.
    other: []const u8 = "",
};

fn writeGroups(t: *Text, g: Groups) void {
    put(t, ",\"groups\":{\"of\":");
    quote(t, g.of);
    part(t, "other", g.other);
    put(t, ",\"names\":{");
    for (g.names, 0..) |n, i| {
        if (i > 0) put(t, ",");
        quote(t, n[0]);
        put(t, ":");
        quote(t, n[1]);
    }
    put(t, "}}");
}

/// What post_filter proposes: nothing, so far.
pub const Nomination = struct {
    node: []const u8 = "",
    victims: Text = .empty,
    reclaimed: Text = .empty,
    reasons: Text = .empty,

    /// Names the node on which the pod will fit.
    pub fn nominate(n: *Nomination, node: []const u8) void {
        n.node = node;
    }
    /// Removes a pod of that node, of lower priority, to make room; uid may be "".
    pub fn evict(n: *Nomination, namespace: []const u8, name: []const u8, uid: []const u8) void {
        append(&n.victims, .{ .namespace = namespace, .name = name, .uid = uid });
    }
    /// Lets those pods of a group make room that have no place in what it keeps: the most important ones keep
    /// theirs, and of a resource that is not named, all. The host finds out which of them have to go, whole gangs; the pods
    /// of a group that is named first rather stay. It takes the place of nominate, for plugins with groups.
    pub fn reclaim(n: *Nomination, group: []const u8, keep: []const Amount) void {
        put(&n.reclaimed, if (n.reclaimed.items.len > 0) ",{\"group\":" else "{\"group\":");
        quote(&n.reclaimed, group);
        put(&n.reclaimed, ",\"keep\":");
        writeAmounts(&n.reclaimed, keep);
        put(&n.reclaimed, "}");
    }
    /// Lets the pods of a group make room whose priority is lower.
    pub fn reclaimBelow(n: *Nomination, group: []const u8, priority: i64) void {
        append(&n.reclaimed, .{ .group = group, .below = priority });
    }
    /// Says why nothing is proposed.
    pub fn explain(n: *Nomination, comptime fmt: []const u8, args: anytype) void {
        append(&n.reasons, print(fmt, args));
    }

    fn encode(n: *Nomination) i64 {
        var t: Text = .empty;
        if (n.node.len > 0) {
            part(&t, "nominated", n.node);
            within(&t, "evict", "[", n.victims.items, "]");
        }
        if (n.reclaimed.items.len > 0) within(&t, "reclaim", "[", n.reclaimed.items, "]");
        if (n.reasons.items.len > 0) within(&t, "reasons", "[", n.reasons.items, "]");
        return objectOf(&t);
    }
};

/// What bind answers: nothing, so far, leaves the binding to others.
pub const Binding = struct {
    bound: bool = false,
    annotations: Text = .empty,
    reasons: Text = .empty,

    /// Has the pod bound to the node.
    pub fn bind(b: *Binding) void {
        b.bound = true;
    }
    /// Has the pod bound, with an annotation.
    pub fn annotate(b: *Binding, key: []const u8, comptime fmt: []const u8, args: anytype) void {
        b.bound = true;
        append(&b.annotations, key);
        put(&b.annotations, ":");
        quote(&b.annotations, print(fmt, args));
    }
    /// Gives the place up.
    pub fn refuse(b: *Binding, comptime fmt: []const u8, args: anytype) void {
        append(&b.reasons, print(fmt, args));
    }

    fn encode(b: *Binding) i64 {
        var t: Text = .empty;
        if (b.reasons.items.len > 0) {
            part(&t, "allowed", false);
            within(&t, "reasons", "[", b.reasons.items, "]");
        } else if (b.bound) within(&t, "annotations", "{", b.annotations.items, "}");
        return objectOf(&t);
    }
};

/// An object of the parts that were written, each behind a comma; without any there is no answer.
fn objectOf(t: *Text) i64 {
    if (t.items.len == 0) return 0;
    t.items[0] = '{';
    put(t, "}");
    return give(t.items, false);
}

fn refused(key: []const u8, for_good: bool, reason: []const u8) i64 {
    var t: Text = .empty;
    part(&t, key, false);
    if (for_good) part(&t, "unresolvable", true);
    part(&t, "reasons", .{reason});
    return objectOf(&t);
}

/// A column of the node table, or a cell of the pod's row.
pub const Column = struct { path: []const u8, type: []const u8 = "int", equals: ?[]const u8 = null };
/// An integer, or a quantity rounded up.
pub fn int(path: []const u8) Column {
    return .{ .path = path };
}
/// Thousandths of a quantity.
pub fn milli(path: []const u8) Column {
    return .{ .path = path, .type = "milli" };
}
/// A number that stands for a string: the same for equal strings, 0 where it is absent.
pub fn string(path: []const u8) Column {
    return .{ .path = path, .type = "string" };
}
/// 1 where the value is true.
pub fn boolean(path: []const u8) Column {
    return .{ .path = path, .type = "bool" };
}
/// 1 where the value is this string.
pub fn equals(path: []const u8, text: []const u8) Column {
    return .{ .path = path, .type = "bool", .equals = text };
}

/// A kind of object that a reconciler reads.
pub const Watch = struct { group: []const u8 = "", version: []const u8 = "v1", resource: []const u8, kind: []const u8, selector: []const u8 = "" };

/// Which requests an admission hook wants to see. What is empty matches everything.
pub const Rule = struct { operations: []const []const u8 = &.{}, groups: []const []const u8 = &.{}, versions: []const []const u8 = &.{}, resources: []const []const u8 = &.{} };

/// Names an object of a plan. Without a namespace it is in the primary's; with a uid, an object
/// of the same name that is another one is left alone. subresource ("scale") is for patches. For
/// deletions: an object in another state than resourceVersion is not deleted, and the host calls
/// again; propagationPolicy is "Background" (the default), "Foreground" or "Orphan".
pub const Target = struct { api_version: []const u8, kind: []const u8, name: []const u8, namespace: []const u8 = "", uid: []const u8 = "", subresource: []const u8 = "", resourceVersion: []const u8 = "", propagationPolicy: []const u8 = "" };

fn writeTarget(t: *Text, o: Target) void {
    if (t.items.len > 0) put(t, ",");
    put(t, "{\"apiVersion\":");
    write(t, o.api_version);
    part(t, "kind", o.kind);
    part(t, "name", o.name);
    inline for (.{ "namespace", "uid", "subresource", "resourceVersion", "propagationPolicy" }) |key| {
        if (@field(o, key).len > 0) part(t, key, @field(o, key));
    }
}

/// What a reconciler wants. It says what there should be, not what to change: it
/// is carried out again and again.
pub const Plan = struct {
    applied: Text = .empty,
    patched: Text = .empty,
    deleted: Text = .empty,
    conditions: Text = .empty,
    events: Text = .empty,
    state: []const u8 = "",
    seconds: i64 = 0,

    /// Makes an object be as given (server-side apply). It belongs to the primary, and goes with it.
    pub fn apply(p: *Plan, object: anytype) void {
        append(&p.applied, object);
    }
    /// Removes an object.
    pub fn delete(p: *Plan, api_version: []const u8, kind: []const u8, namespace: []const u8, name: []const u8) void {
        p.deleteTarget(.{ .api_version = api_version, .kind = kind, .namespace = namespace, .name = name });
    }
    /// Removes an object, with the uid where one is given.
    pub fn deleteTarget(p: *Plan, target: Target) void {
        writeTarget(&p.deleted, target);
        put(&p.deleted, "}");
    }
    /// Changes an object that is not the plugin's to apply as a whole: operations are a tuple of a
    /// JSON patch's (RFC 6902), which the API server applies:
    /// .{.{ .op = .replace, .path = "/spec/replicas", .value = 0 }}.
    pub fn patch(p: *Plan, target: Target, operations: anytype) void {
        writeTarget(&p.patched, target);
        within(&p.patched, "patch", "", json(operations), "}");
    }
    /// Sets fields of the primary's status.
    pub fn status(p: *Plan, value: anytype) void {
        p.state = json(value);
    }
    /// Sets a condition of the primary: "True", "False" or "Unknown".
    pub fn condition(p: *Plan, kind: []const u8, value: []const u8, reason: []const u8, message: []const u8) void {
        append(&p.conditions, .{ .type = kind, .status = value, .reason = reason, .message = message });
    }
    /// Records an event on the primary: "Normal" or "Warning".
    pub fn event(p: *Plan, kind: []const u8, reason: []const u8, comptime fmt: []const u8, args: anytype) void {
        append(&p.events, .{ .type = kind, .reason = reason, .message = print(fmt, args) });
    }
    /// Asks to be called again after some seconds, though nothing changed.
    pub fn requeue(p: *Plan, seconds: i64) void {
        p.seconds = seconds;
    }
    /// Fails: the host tries again later.
    pub fn fail(_: *Plan, comptime fmt: []const u8, args: anytype) void {
        failure = print(fmt, args);
    }

    fn encode(p: *Plan) i64 {
        var t: Text = .empty;
        put(&t, "{\"requeueSeconds\":");
        write(&t, p.seconds);
        within(&t, "apply", "[", p.applied.items, "]");
        if (p.patched.items.len > 0) within(&t, "patch", "[", p.patched.items, "]");
        within(&t, "delete", "[", p.deleted.items, "]");
        within(&t, "conditions", "[", p.conditions.items, "]");
        within(&t, "events", "[", p.events.items, "]");
        if (p.state.len > 0) within(&t, "status", "", p.state, "");
        put(&t, "}");
        return give(t.items, false);
    }
};

// ---- The host ----

extern "wasmplane" fn call(op: [*]const u8, op_len: usize, in: [*]const u8, in_len: usize, out: [*]u8, out_cap: usize) i64;

/// The imports of the world in sdk/wit/built.wit, as the component model's canonical ABI has them. An answer stands
/// in a place that is passed.
const canonical = struct {
    extern "wasmplane:plugin/host@1.0.0" fn call(op: [*]const u8, op_len: usize, in: [*]const u8, in_len: usize, place: *[4]u32) void;
    extern "wasi:cli/stderr@0.2.0" fn @"get-stderr"() i32;
    extern "wasi:io/streams@0.2.0" fn @"[method]output-stream.blocking-write-and-flush"(stream: i32, at: [*]const u8, len: usize, place: *[3]u32) void;
};

var asking = false; // what the host wants memory for is a reply

fn askCanonically(function: []const u8, input: []const u8) Reply {
    var place: [4]u32 = undefined; // a result: a list, or a variant with a text
    asking = true;
    canonical.call(function.ptr, function.len, input.ptr, input.len, &place);
    asking = false;
    const failed = place[0] & 0xff != 0;
    const at, const len = if (failed) .{ place[2], place[3] } else .{ place[1], place[2] };
    const reply: []const u8 = if (len == 0) "" else @as([*]const u8, @ptrFromInt(at))[0..len];
    return if (failed) .{ .failed = reply } else .{ .ok = reply };
}

/// A host function's reply, or why it failed.
pub const Reply = union(enum) { ok: []const u8, failed: []const u8 };

/// Calls a host function that the operator granted.
pub fn ask(function: []const u8, input: []const u8) Reply {
    if (component) return askCanonically(function, input);
    var out = must(allocator.alloc(u8, 1024));
    var n = call(function.ptr, function.len, input.ptr, input.len, out.ptr, out.len);
    const failed = n < 0;
    if (failed or n > out.len) { // an empty name gives the last reply again, and its length
        n = call(function.ptr, 0, input.ptr, 0, out.ptr, 0);
        out = must(allocator.alloc(u8, @intCast(n)));
        n = call(function.ptr, 0, input.ptr, 0, out.ptr, out.len);
    }
    const reply = out[0..@intCast(n)];
    return if (failed) .{ .failed = reply } else .{ .ok = reply };
}

/// Calls a host function with a value, and reads its reply as JSON; absent where it fails.
pub fn askJSON(function: []const u8, input: anytype) Value {
    return switch (ask(function, json(input))) {
        .ok => |reply| parse(reply) orelse .absent,
        .failed => .absent,
    };
}

/// Writes a line to the host's log; the plugin needs "log".
pub fn log(comptime fmt: []const u8, args: anytype) void {
    _ = ask("log", json(.{ .level = "INFO", .message = print(fmt, args) })); // a log that is not granted is no failure
}

const Vector = extern struct { at: [*]const u8, len: usize };

extern "wasi_snapshot_preview1" fn fd_write(fd: i32, vectors: [*]const Vector, count: usize, written: *usize) i32;

/// What a plugin's root file takes for its panics, so that their words are part of the error:
///
///     pub const panic = wp.panic;
pub const panic = std.debug.FullPanic(struct {
    fn panic(words: []const u8, _: ?usize) noreturn {
        if (component) {
            const stream = canonical.@"get-stderr"();
            var place: [3]u32 = undefined; // a result: nothing, or why not, which nobody could be told
            for ([_][]const u8{ "panic: ", words, "\n" }) |part_of| {
                canonical.@"[method]output-stream.blocking-write-and-flush"(stream, part_of.ptr, part_of.len, &place);
            }
            @trap();
        }
        const text = [_]Vector{ .{ .at = "panic: ", .len = 7 }, .{ .at = words.ptr, .len = words.len }, .{ .at = "\n", .len = 1 } };
        var written: usize = 0;
        _ = fd_write(2, &text, text.len, &written);
        @trap();
    }
}.panic);

// ---- The module ----

fn give(text: []const u8, failed: bool) i64 {
    const n: u64 = text.len | @as(u64, if (failed) 1 << 31 else 0);
    return @bitCast(@as(u64, @intFromPtr(text.ptr)) << 32 | n);
}

fn Param(comptime f: anytype, comptime i: usize) type {
    return @typeInfo(@TypeOf(f)).@"fn".params[i].type.?;
}

/// A hook at admission or at custom resources: a function of an input and a *Decision,
/// and the requests that it wants to see.
pub fn admission(comptime decide: anytype, comptime match: []const Rule) type {
    return struct {
        pub const run = decide;
        pub const rules = match;
    };
}

/// What may change the mind of a hook that refused a pod.
// abi.yaml: begin events
pub const Event = enum {
    /// A node came.
    nodeAdded,
    /// A node has more to give.
    nodeAllocatableGrew,
    /// A node's labels changed.
    nodeLabelsChanged,
    /// A node's taints changed.
    nodeTaintsChanged,
    /// A pod has gone.
    podRemoved,
    /// A pod was bound.
    podBound,
    /// Volumes, claims or classes changed.
    volumesChanged,
    /// The pod itself changed.
    podChanged,
    /// A node was deleted.
    nodeRemoved,
};
// abi.yaml: end events

/// What a call changes besides answering, by host functions: nothing (where nothing is said; in a dry
/// run the host keeps them from it); the hook looks at dryRun, too; something.
pub const SideEffects = enum { None, NoneOnDryRun, Some };

/// A name for places that depend on the kind of object: .{ .alias = "@replicas", .places = &.{.{ "Deployment",
/// "spec.replicas" }, .{ "*", "spec.size" }} } makes object.@replicas a field.
pub const Alternative = struct { alias: []const u8, places: []const [2][]const u8 };

/// What a hook says of itself besides its fields. pure, of authorize, pre_filter, filter and post_filter: the answer depends
/// on the fields and the settings only, so that the host may remember it, and one pod speaks for others like it. events, of scheduling: after which a pod that it refused is worth another try; none = any.
pub const Options = struct {
    pure: bool = false,
    side_effects: ?SideEffects = null,
    events: []const Event = &.{},
    alternatives: []const Alternative = &.{},
};

/// A hook with options: .filter = wp.with(filter, .{ .events = &.{.nodeAdded} }).
pub fn with(comptime h: anytype, comptime o: Options) type {
    return struct {
        pub const hook = h;
        pub const options = o;
    };
}

fn wrapped(comptime h: anytype) bool {
    return @TypeOf(h) == type and @hasDecl(h, "options");
}

/// A hook without its options.
fn bare(comptime h: anytype) if (wrapped(h)) @TypeOf(h.hook) else @TypeOf(h) {
    return if (wrapped(h)) h.hook else h;
}

fn writeOptions(t: *Text, comptime h: anytype) void {
    if (comptime !wrapped(h)) return;
    const o: Options = h.options;
    if (o.pure) part(t, "pure", true);
    if (o.side_effects) |s| part(t, "sideEffects", s);
    if (o.events.len > 0) part(t, "events", o.events);
    if (o.alternatives.len == 0) return;
    put(t, ",\"alternatives\":{");
    for (o.alternatives, 0..) |a, i| {
        if (i > 0) put(t, ",");
        quote(t, a.alias);
        put(t, ":{");
        for (a.places, 0..) |place, j| {
            if (j > 0) put(t, ",");
            quote(t, place[0]);
            put(t, ":");
            quote(t, place[1]);
        }
        put(t, "}");
    }
    put(t, "}");
}

// abi.yaml: begin operations
/// The operations, by hook.
const operation = struct {
    const settings = 0;
    const mutate = 1;
    const validate = 2;
    const authorize = 3;
    const filter = 4;
    const score = 5;
    const table = 6;
    const reconcile = 7;
    const node_admission = 8;
    const convert = 9;
    const validate_custom = 10;
    const pre_enqueue = 11;
    const queue_sort = 12;
    const pre_filter = 13;
    const post_filter = 14;
    const pre_score = 15;
    const normalize = 16;
    const reserve = 17;
    const unreserve = 18;
    const permit = 19;
    const pre_bind = 20;
    const bind = 21;
    const post_bind = 22;
};

/// The point of an operation.
fn pointOf(comptime op: i32) []const u8 {
    return switch (op) {
        operation.mutate => "admission.mutate",
        operation.validate => "admission.validate",
        operation.authorize => "authorization",
        operation.filter => "scheduling.filter",
        operation.score => "scheduling.score",
        operation.table => "scheduling.table",
        operation.reconcile => "reconcile",
        operation.node_admission => "nodeadmission",
        operation.convert => "customresource.convert",
        operation.validate_custom => "customresource.validate",
        operation.pre_enqueue => "scheduling.preEnqueue",
        operation.queue_sort => "scheduling.queueSort",
        operation.pre_filter => "scheduling.preFilter",
        operation.post_filter => "scheduling.postFilter",
        operation.pre_score => "scheduling.preScore",
        operation.normalize => "scheduling.normalize",
        operation.reserve => "scheduling.reserve",
        operation.unreserve => "scheduling.unreserve",
        operation.permit => "scheduling.permit",
        operation.pre_bind => "scheduling.preBind",
        operation.bind => "scheduling.bind",
        operation.post_bind => "scheduling.postBind",
        else => unreachable,
    };
}

/// The steps of a pod's cycle: the name in the plugin's table, and the operation.
const steps = .{
    .{ "pre_enqueue", operation.pre_enqueue },
    .{ "queue_sort", operation.queue_sort },
    .{ "pre_filter", operation.pre_filter },
    .{ "filter", operation.filter },
    .{ "post_filter", operation.post_filter },
    .{ "pre_score", operation.pre_score },
    .{ "score", operation.score },
    .{ "normalize", operation.normalize },
    .{ "reserve", operation.reserve },
    .{ "unreserve", operation.unreserve },
    .{ "permit", operation.permit },
    .{ "pre_bind", operation.pre_bind },
    .{ "bind", operation.bind },
    .{ "post_bind", operation.post_bind },
};
// abi.yaml: end operations

/// Runs a step; what it answers follows from the function's type.
fn runStep(comptime op: i32, comptime f: anytype, root: Value) i64 {
    const info = @typeInfo(@TypeOf(f)).@"fn";
    const key = if (op == operation.filter) "fits" else "allowed";
    if (info.params.len == 2 and info.params[1].type.? == []i64) return normalized(f, root);
    if (info.params.len == 2) {
        var out: @typeInfo(info.params[1].type.?).pointer.child = .{};
        f(.{ .root = root }, &out);
        return out.encode();
    }
    const answer = f(.{ .root = root });
    switch (@TypeOf(answer)) {
        void => return 0,
        i64 => return give(json(answer), false),
        Fit => return switch (answer) {
            .fits => 0,
            .unfit => |reason| refused(key, false, reason),
            .never => |reason| refused(key, true, reason),
        },
        Permission => {
            var t: Text = .empty;
            switch (answer) {
                .proceed => return 0,
                .wait => |w| {
                    part(&t, "decision", "wait");
                    part(&t, "waitSeconds", w.seconds);
                    part(&t, "reasons", .{w.reason});
                },
                .reject => |reason| {
                    part(&t, "decision", "deny");
                    part(&t, "reasons", .{reason});
                },
            }
            return objectOf(&t);
        },
        else => {
            const reason: ?[]const u8 = answer;
            return if (reason) |r| refused(key, false, r) else 0;
        },
    }
}

/// Runs normalize: fn (in, scores: []i64) void, whose input has the field "scores".
fn normalized(comptime f: anytype, root: Value) i64 {
    const in: Param(f, 0) = .{ .root = root };
    const given = in.get("scores");
    const scores = must(allocator.alloc(i64, given.len()));
    for (scores, 0..) |*s, i| s.* = given.at(i).int();
    f(in, scores);
    for (scores) |*s| s.* = @min(@max(s.*, 0), 100);
    return give(json(scores), false);
}

/// A node table: judge(pod: *const Pod, node: *const Node) Judgement, whose rows are
/// extern structs with a declaration `columns`, and the reasons that judgements refer to.
pub fn table(comptime judge: anytype, comptime reasons: []const []const u8) type {
    return struct {
        pub const run = judge;
        pub const texts = reasons;
    };
}

/// A reconciler: a function of an input and a *Plan, the kind that it reconciles and
/// those that it makes.
pub fn reconciler(comptime plan: anytype, comptime primary: Watch, comptime owned: []const Watch) type {
    return struct {
        pub const run = plan;
        pub const of = primary;
        pub const makes = owned;
    };
}

/// A hook at any other point: a function of an input that answers JSON, "" for none. op is from 100 on.
pub fn other(comptime op: i32, comptime point: []const u8, comptime answer: anytype) type {
    return struct {
        pub const run = answer;
        pub const number = op;
        pub const name = point;
    };
}

fn writeRules(t: *Text, comptime rules: []const Rule) void {
    put(t, ",\"match\":[");
    inline for (rules, 0..) |r, i| {
        if (i > 0) put(t, ",");
        write(t, .{ .operations = r.operations, .apiGroups = r.groups, .apiVersions = r.versions, .resources = r.resources });
    }
    put(t, "]");
}

/// The columns of a row: a struct whose fields are i64 and whose declaration
/// `columns` names, for each of them, a Column or a function that makes one.
fn writeColumns(t: *Text, comptime Row: type) void {
    put(t, "[");
    inline for (@typeInfo(Row).@"struct".fields, 0..) |f, i| {
        if (f.type != i64) @compileError("the fields of a row are i64: " ++ f.name);
        if (i > 0) put(t, ",");
        const made = @field(Row.columns, f.name);
        const c: Column = if (@typeInfo(@TypeOf(made)) == .@"fn") made() else made;
        if (c.equals) |text| write(t, .{ .path = c.path, .type = c.type, .equals = text }) else write(t, .{ .path = c.path, .type = c.type });
    }
    put(t, "]");
}

/// Makes the functions of a plugin the exports of the module. See the head of this
/// file; what may be named: name, version, settings (the address of a variable whose type says what is
/// expected), settings_schema (a JSON schema of them, as text: the host holds an entry's settings against it first, and
/// names the field that is wrong), configure (a function that checks it and answers what is wrong, or null),
/// needs, groups (a wp.Groups, or a function that makes one of the settings), mutate, validate, authorize, table, reconcile, node_admission, convert
/// (customresource.convert: brings `object` into the version `desiredAPIVersion` by changes; it has that
/// apiVersion already, and a refusal fails the conversion), validate_custom (customresource.validate), others, and the steps of a pod's cycle,
/// whose functions take an input and answer, or fill in, what the step decides:
///
///     pre_enqueue, reserve, pre_bind       ?[]const u8: why the pod is held back
///     queue_sort, score                    i64
///     pre_filter                           *wp.Selection
///     filter                               ?[]const u8 or wp.Fit
///     post_filter                          *wp.Nomination
///     pre_score                            *wp.Preparation
///     normalize                            []i64, and the field "scores" in the input
///     permit                               wp.Permission
///     bind                                 *wp.Binding
///     unreserve, post_bind                 void
pub fn plugin(comptime p: anytype) void {
    @setEvalBranchQuota(100_000); // names are compared while compiling
    const P = @TypeOf(p);
    inline for (@typeInfo(P).@"struct".fields) |f| {
        const known = [_][]const u8{ "name", "version", "settings", "settings_schema", "configure", "needs", "groups", "mutate", "validate", "authorize", "table", "reconcile", "node_admission", "convert", "validate_custom", "others" };
        comptime for (known) |k| {
            if (std.mem.eql(u8, k, f.name)) break;
        } else for (steps) |s| {
            if (std.mem.eql(u8, s[0], f.name)) break;
        } else @compileError("a plugin has no " ++ f.name);
    }
    const has = struct {
        inline fn has(comptime name: []const u8) bool {
            return @hasField(P, name);
        }
    }.has;
    const judged = if (has("table")) bare(p.table) else void;
    const Node = if (has("table")) @typeInfo(Param(judged.run, 1)).pointer.child else void;
    const Pod = if (has("table")) @typeInfo(Param(judged.run, 0)).pointer.child else void;

    const module = struct {
        var rows: []Node = &.{};

        fn begin(t: *Text, op: i32, point: []const u8, fields: []const []const u8) void {
            if (t.items[t.items.len - 1] != '[') put(t, ",");
            put(t, "{\"encoding\":\"flat\"");
            part(t, "op", op);
            part(t, "point", point);
            part(t, "fields", fields);
        }

        fn simple(t: *Text, op: i32, point: []const u8, comptime h: anytype) void {
            begin(t, op, point, Param(bare(h), 0).fields);
            writeOptions(t, h);
            put(t, "}");
        }

        fn admitting(t: *Text, op: i32, point: []const u8, comptime h: anytype) void {
            begin(t, op, point, Param(bare(h).run, 0).fields);
            writeRules(t, bare(h).rules);
            writeOptions(t, h);
            put(t, "}");
        }

        fn describe() callconv(.c) i64 {
            rewind();
            var t: Text = .empty;
            put(&t, "{\"abi\":1");
            part(&t, "name", @as([]const u8, p.name));
            part(&t, "version", @as([]const u8, p.version));
            part(&t, "settings", has("settings"));
            if (has("settings_schema")) put(&t, ",\"settingsSchema\":" ++ p.settings_schema);
            if (has("needs")) part(&t, "needs", @as([]const []const u8, p.needs));
            if (has("groups")) writeGroups(&t, if (@typeInfo(@TypeOf(p.groups)) == .@"fn") p.groups() else p.groups);
            put(&t, ",\"hooks\":[");
            if (has("mutate")) admitting(&t, operation.mutate, pointOf(operation.mutate), p.mutate);
            if (has("validate")) admitting(&t, operation.validate, pointOf(operation.validate), p.validate);
            if (has("convert")) admitting(&t, operation.convert, pointOf(operation.convert), p.convert);
            if (has("validate_custom")) admitting(&t, operation.validate_custom, pointOf(operation.validate_custom), p.validate_custom);
            if (has("authorize")) simple(&t, operation.authorize, pointOf(operation.authorize), p.authorize);
            inline for (steps) |s| if (has(s[0])) simple(&t, s[1], pointOf(s[1]), @field(p, s[0]));
            if (has("table")) {
                begin(&t, operation.table, pointOf(operation.table), &.{});
                put(&t, ",\"columns\":");
                writeColumns(&t, Node);
                put(&t, ",\"pod\":");
                writeColumns(&t, Pod);
                part(&t, "reasons", judged.texts);
                writeOptions(&t, p.table);
                put(&t, "}");
            }
            if (has("reconcile")) {
                begin(&t, operation.reconcile, pointOf(operation.reconcile), Param(p.reconcile.run, 0).fields);
                part(&t, "primary", p.reconcile.of);
                part(&t, "owned", p.reconcile.makes);
                put(&t, "}");
            }
            if (has("node_admission")) simple(&t, operation.node_admission, pointOf(operation.node_admission), p.node_admission);
            if (has("others")) inline for (p.others) |o| simple(&t, o.number, o.name, o.run);
            put(&t, "]}");
            return give(t.items, false);
        }

        fn alloc(n: i32) callconv(.c) i32 {
            rewind();
            if (n <= 0) return 0;
            const at = allocator.alignedAlloc(u8, .@"8", @intCast(n)) catch return 0;
            return @intCast(@intFromPtr(at.ptr));
        }

        fn reserve(n: i32) callconv(.c) i32 {
            if (n > rows.len) {
                rewind();
                // Twice what is asked for, as what is outgrown is not given back.
                rows = allocator.alignedAlloc(Node, .@"8", 2 * @as(usize, @intCast(n))) catch return 0;
                floor = std.mem.alignForward(usize, top, 16);
            }
            return @intCast(@intFromPtr(rows.ptr));
        }

        fn configure(text: []const u8) i64 {
            const v = parse(text) orelse return give("the settings are no JSON", true);
            if (decode(@TypeOf(p.settings.*), v, p.settings, "")) |wrong| return give(wrong, true);
            if (has("configure")) if (p.configure()) |wrong| return give(wrong, true);
            floor = std.mem.alignForward(usize, top, 16); // what the settings are made of stays
            return 0;
        }

        fn judge(data: [*]const u8) i64 {
            const cells: [*]const i64 = @ptrCast(@alignCast(data));
            const n: usize = @intCast(cells[0]);
            if (n > rows.len) return give("more rows than were reserved", true);
            const pod: *const Pod = @ptrCast(cells + 1);
            const out = must(allocator.alloc(Judgement, n));
            for (out, rows[0..n]) |*o, *row| o.* = judged.run(pod, row);
            return give(@ptrCast(out), false);
        }

        fn object(v: anytype) i64 {
            return give(json(v), false);
        }

        fn call(op: i32, at: i32, n: i32) callconv(.c) i64 {
            failure = null;
            const answer = run(op, at, n);
            return if (failure) |message| give(message, true) else answer;
        }

        fn run(op: i32, at: i32, n: i32) i64 {
            if (n <= 0) rewind();
            const data: [*]const u8 = if (n > 0) @ptrFromInt(@as(usize, @intCast(at))) else @ptrCast(&__heap_base);
            const cell: *const Cell = @ptrCast(@alignCast(data));
            const root: Value = if (n >= 8) .{ .base = data, .cell = cell.* } else .absent;
            if (has("settings")) if (op == operation.settings) return configure(data[0..@intCast(n)]);
            if (has("table")) if (op == operation.table and n >= 8) return judge(data);
            if (has("mutate")) if (op == operation.mutate) {
                var d: Decision = .{};
                bare(p.mutate).run(.{ .root = root }, &d);
                return d.encode();
            };
            if (has("validate")) if (op == operation.validate) {
                var d: Decision = .{};
                bare(p.validate).run(.{ .root = root }, &d);
                return d.encode();
            };
            if (has("convert")) if (op == operation.convert) {
                var d: Decision = .{};
                bare(p.convert).run(.{ .root = root }, &d);
                return d.encode();
            };
            if (has("validate_custom")) if (op == operation.validate_custom) {
                var d: Decision = .{};
                bare(p.validate_custom).run(.{ .root = root }, &d);
                return d.encode();
            };
            if (has("authorize")) if (op == operation.authorize) {
                const v: Verdict = bare(p.authorize)(.{ .root = root });
                return if (v.decision.len == 0) 0 else object(v);
            };
            inline for (steps) |s| if (has(s[0])) if (op == s[1]) return runStep(s[1], bare(@field(p, s[0])), root);
            if (has("reconcile")) if (op == operation.reconcile) {
                var out: Plan = .{};
                p.reconcile.run(.{ .root = root }, &out);
                return out.encode();
            };
            if (has("node_admission")) if (op == operation.node_admission) {
                const refusal: ?Refusal = bare(p.node_admission)(.{ .root = root });
                return if (refusal) |r| object(.{ .admitted = false, .reason = r.reason, .message = r.message }) else 0;
            };
            if (has("others")) inline for (p.others) |o| {
                if (op == o.number) return give(o.run(.{ .root = root }), false);
            };
            return give("the plugin has no such operation", true);
        }

        var place: [4]u32 = undefined; // where an answer stands

        /// Memory for the host: for the input of a call, which ends what the call before took, or for a reply.
        fn realloc(old: [*]u8, old_len: usize, _: usize, len: usize) callconv(.c) usize {
            if (!asking and old_len == 0) return @intCast(alloc(@intCast(len)));
            const at = must(allocator.alignedAlloc(u8, .@"8", len));
            const kept = @min(old_len, len);
            @memcpy(at[0..kept], old[0..kept]);
            return @intFromPtr(at.ptr);
        }

        fn describeCanonically() callconv(.c) *[4]u32 {
            const manifest: u64 = @bitCast(describe());
            place = .{ @intCast(manifest >> 32), @truncate(manifest), 0, 0 };
            return &place;
        }

        /// The answer is a result<option<list<u8>>, string>.
        fn callCanonically(op: i32, at: i32, n: i32) callconv(.c) *[4]u32 {
            const answer: u64 = @bitCast(@This().call(op, at, n));
            const text: u32 = @intCast(answer >> 32);
            const len: u32 = @intCast(answer & 0x7fffffff);
            place = if (answer >> 31 & 1 != 0) .{ 1, text, len, 0 } else .{ 0, @intFromBool(len > 0), text, len };
            return &place;
        }
    };
    if (component) {
        @export(&module.realloc, .{ .name = "cabi_realloc" });
        @export(&module.describeCanonically, .{ .name = "describe" });
        @export(&module.callCanonically, .{ .name = "call" });
        return;
    }
    @export(&module.describe, .{ .name = "describe" });
    @export(&module.alloc, .{ .name = "alloc" });
    @export(&module.call, .{ .name = "call" });
    if (has("table")) @export(&module.reserve, .{ .name = "reserve" });
}
