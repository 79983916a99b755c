// SPDX-License-Identifier: Apache-2.0

/*
 * The runtime of plugins in JavaScript: the engine QuickJS-ng behind the plugin ABI
 * (sdk/spec/README.md). It is built once, for all plugins. `wasmplane plugin build` has it
 * evaluate a plugin's script, and keeps the memory as it is afterwards as the plugin's own: a
 * plugin that starts has its functions compiled and its globals set, and begins with its first call.
 *
 * The glue in JavaScript (../glue.js) registers functions by operation; here is what has to be fast
 * or cannot be said in JavaScript: inputs become values, answers JSON, exceptions a line of text.
 * The engine is one unit with it, because it sets no bound of the stack for WASI by itself.
 */
#include "quickjs.c"

#define EXPORT(name) __attribute__((export_name(name)))
#define OPERATIONS 128

extern unsigned char __stack_low;

static JSRuntime *rt;
static JSContext *ctx;
static JSValue hooks[OPERATIONS], describer;
static uint8_t form[OPERATIONS]; /* how the input of an operation is encoded */
enum { FORM_NONE, FORM_FLAT, FORM_JSON, FORM_TABLE };

/* ---- Memory that outlives a call ---- */

typedef struct {
    char *at;
    size_t length, capacity;
} text;

static text input, answer;
static int exhausted; /* memory was refused: what the engine has in its hands may be half made */

static bool room(text *t, size_t more) {
    if (t->length + more <= t->capacity) return true;
    size_t capacity = t->capacity * 2 + more + 256;
    char *at = realloc(t->at, capacity);
    if (!at) {
        exhausted = 1;
        return false;
    }
    t->at = at;
    t->capacity = capacity;
    return true;
}

static void put(text *t, const char *s, size_t n) {
    if (!room(t, n)) return;
    memcpy(t->at + t->length, s, n);
    t->length += n;
}

static void puts_(text *t, const char *s) { put(t, s, strlen(s)); }

/* A large input or answer is not kept for the calls after it. */
static void renew(text *t) {
    t->length = 0;
    if (t->capacity <= 1 << 16) return;
    free(t->at);
    t->at = 0;
    t->capacity = 0;
}

static uint64_t given(bool failed) {
    return (uint64_t)(uintptr_t)answer.at << 32 | answer.length | (failed ? 0x80000000u : 0);
}

/* Ends the call and the instance; the words become part of the error. */
static _Noreturn void panic(const char *words) {
    fputs(words, stderr);
    fputc('\n', stderr);
    fflush(stderr);
    __builtin_trap();
}

/* ---- Inputs: flat cells become values (section 5 of the specification). ---- */

/* What objects and arrays are made of is collected on a stack first: an object whose keys were seen before, in this
 * order, gets the shape that was made then, instead of growing key by key. */
static struct {
    JSAtom *keys;
    JSValue *values;
    uint32_t length, capacity;
} parts;

enum { SHAPES = 128, SHAPE_KEYS = 64 };
static JSShape *shapes[SHAPES];

/* Puts a key and its value on the stack, which takes both over. */
static bool push(JSAtom key, JSValue v) {
    if (parts.length == parts.capacity) {
        uint32_t capacity = 2 * parts.capacity + 64;
        JSAtom *keys = realloc(parts.keys, capacity * sizeof *keys);
        if (keys) parts.keys = keys;
        JSValue *values = keys ? realloc(parts.values, capacity * sizeof *values) : 0;
        if (!values) {
            JS_FreeAtom(ctx, key);
            JS_FreeValue(ctx, v);
            JS_ThrowOutOfMemory(ctx);
            return false;
        }
        parts.values = values;
        parts.capacity = capacity;
    }
    parts.keys[parts.length] = key;
    parts.values[parts.length++] = v;
    return true;
}

/* Takes off what lies above base. */
static JSValue dropped(uint32_t base) {
    while (parts.length > base) {
        JS_FreeAtom(ctx, parts.keys[--parts.length]);
        JS_FreeValue(ctx, parts.values[parts.length]);
    }
    return JS_EXCEPTION;
}

/* Makes an array of what lies above base. */
static JSValue array_of(uint32_t base) {
    uint32_t n = parts.length - base;
    parts.length = base;
    return JS_NewArrayFrom(ctx, n, parts.values + base);
}

static JSShape **shape_of(uint32_t base, uint32_t n) {
    uint32_t hash = n;
    for (uint32_t i = 0; i < n; i++) hash = (hash ^ parts.keys[base + i]) * 0x9e3779b1;
    return &shapes[hash >> 25];
}

static bool has_keys(JSShape *shape, uint32_t base, uint32_t n) {
    if (!shape || (uint32_t)shape->prop_count != n) return false;
    JSShapeProperty *p = get_shape_prop(shape);
    for (uint32_t i = 0; i < n; i++)
        if (p[i].atom != parts.keys[base + i] || p[i].flags != JS_PROP_C_W_E) return false;
    return true;
}

/* Makes an object of what lies above base. */
static JSValue object_of(uint32_t base) {
    uint32_t n = parts.length - base;
    JSShape **known = shape_of(base, n);
    if (n && has_keys(*known, base, n)) {
        JSValue object = JS_NewObjectFromShape(ctx, js_dup_shape(*known), JS_CLASS_OBJECT, NULL);
        if (JS_IsException(object)) return dropped(base);
        JSProperty *p = JS_VALUE_GET_OBJ(object)->prop;
        for (uint32_t i = 0; i < n; i++) {
            p[i].u.value = parts.values[base + i];
            JS_FreeAtom(ctx, parts.keys[base + i]);
        }
        parts.length = base;
        return object;
    }
    JSValue object = JS_NewObject(ctx);
    if (JS_IsException(object)) return dropped(base);
    for (uint32_t i = 0; i < n; i++) {
        JSValue v = parts.values[base + i];
        parts.values[base + i] = JS_UNDEFINED;
        if (JS_DefinePropertyValue(ctx, object, parts.keys[base + i], v, JS_PROP_C_W_E) < 0) {
            JS_FreeValue(ctx, object);
            return dropped(base);
        }
    }
    JSShape *shape = JS_VALUE_GET_OBJ(object)->shape;
    if (n <= SHAPE_KEYS && has_keys(shape, base, n)) { /* no key stood there twice */
        if (*known) js_free_shape(rt, *known);
        *known = js_dup_shape(shape);
    }
    dropped(base);
    return object;
}

static JSValue integer(int64_t i) {
    return i >= -MAX_SAFE_INTEGER && i <= MAX_SAFE_INTEGER ? JS_NewInt64(ctx, i) : JS_NewBigInt64(ctx, i);
}

static JSValue value(const uint8_t *base_of, uint64_t cell) {
    uint32_t at = (uint32_t)cell, n = (cell >> 32) & 0xfffffff, kind = cell >> 60;
    int64_t i;
    double d;
    switch (kind) {
    case 0: return JS_NULL;
    case 1: return JS_FALSE;
    case 2: return JS_TRUE;
    case 3:
        memcpy(&i, base_of + at, 8);
        return integer(i);
    case 4:
        memcpy(&d, base_of + at, 8);
        return JS_NewFloat64(ctx, d);
    case 5: return JS_NewStringLen(ctx, (const char *)base_of + at, n);
    case 6: {
        uint32_t base = parts.length;
        for (uint32_t k = 0; k < n; k++) {
            uint64_t item;
            memcpy(&item, base_of + at + 8 * k, 8);
            JSValue v = value(base_of, item);
            if (JS_IsException(v) || !push(JS_ATOM_NULL, v)) return dropped(base);
        }
        return array_of(base);
    }
    case 7: {
        uint32_t base = parts.length;
        for (uint32_t k = 0; k < n; k++) {
            uint64_t pair[2];
            memcpy(pair, base_of + at + 16 * k, 16);
            JSValue v = value(base_of, pair[1]);
            if (JS_IsException(v)) return dropped(base);
            JSAtom key = JS_NewAtomLen(ctx, (const char *)base_of + (uint32_t)pair[0], (pair[0] >> 32) & 0xfffffff);
            if (!push(key, v) || key == JS_ATOM_NULL) return dropped(base);
        }
        return object_of(base);
    }
    }
    return JS_UNDEFINED;
}

/* ---- The same of JSON: as JSON.parse, but that integers stay exact. ---- */

typedef struct {
    const char *at, *end;
    text unescaped;
} parser;

static int next(parser *p) {
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\n' || *p->at == '\r' || *p->at == '\t')) p->at++;
    return p->at < p->end ? (unsigned char)*p->at : -1;
}

static JSValue malformed(void) { return JS_ThrowSyntaxError(ctx, "the input is no JSON"); }

static int32_t hex(const char *s) {
    int32_t v = 0;
    for (int i = 0; i < 4; i++) {
        int c = s[i] >= '0' && s[i] <= '9' ? s[i] - '0' : (s[i] | 32) >= 'a' && (s[i] | 32) <= 'f' ? (s[i] | 32) - 'a' + 10 : -1;
        if (c < 0) return -1;
        v = v << 4 | c;
    }
    return v;
}

/* Reads a string up to its quote: its bytes, which are valid until the next one is read. */
static const char *characters(parser *p, size_t *length) {
    const char *from = ++p->at;
    while (p->at < p->end && *p->at != '"' && *p->at != '\\') p->at++;
    if (p->at < p->end && *p->at == '"') {
        *length = p->at++ - from;
        return from;
    }
    text *t = &p->unescaped;
    t->length = 0;
    put(t, from, p->at - from);
    while (p->at < p->end && *p->at != '"') {
        if (*p->at != '\\') {
            put(t, p->at++, 1);
            continue;
        }
        if (p->end - p->at < 2) return 0;
        static const char names[] = "\"\\/bfnrt", means[] = "\"\\/\b\f\n\r\t";
        const char *known = p->at[1] ? strchr(names, p->at[1]) : 0;
        if (known) {
            put(t, means + (known - names), 1);
            p->at += 2;
            continue;
        }
        int32_t c = p->at[1] == 'u' && p->end - p->at >= 6 ? hex(p->at + 2) : -1, low;
        if (c < 0) return 0;
        p->at += 6;
        if (c >= 0xd800 && c < 0xdc00 && p->end - p->at >= 6 && p->at[0] == '\\' && p->at[1] == 'u' && (low = hex(p->at + 2)) >= 0xdc00 && low < 0xe000) {
            c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
            p->at += 6;
        }
        uint8_t encoded[4];
        put(t, (char *)encoded, utf8_encode(encoded, c));
    }
    if (p->at == p->end) return 0;
    p->at++;
    *length = t->length;
    return t->at ? t->at : "";
}

static JSValue parse_number(parser *p) {
    const char *from = p->at;
    int64_t whole = 0;
    int digits = 0;
    bool exact = true, minus = *p->at == '-';
    for (p->at += minus; p->at < p->end; p->at++) {
        if (*p->at >= '0' && *p->at <= '9') {
            if (++digits <= 18) whole = whole * 10 + (*p->at - '0');
        } else if (*p->at == '.' || *p->at == '+' || *p->at == '-' || (*p->at | 32) == 'e') {
            exact = false;
        } else {
            break;
        }
    }
    if (!digits) return malformed();
    if (exact && digits <= 18) return minus && !whole ? JS_NewFloat64(ctx, -0.0) : integer(minus ? -whole : whole);
    return JS_NewFloat64(ctx, strtod(from, 0)); /* the input ends in a zero */
}

static JSValue parse(parser *p, int depth);

static JSValue parse_array(parser *p, int depth) {
    uint32_t base = parts.length;
    p->at++;
    if (next(p) == ']') return p->at++, JS_NewArray(ctx);
    for (;;) {
        JSValue v = parse(p, depth + 1);
        if (JS_IsException(v) || !push(JS_ATOM_NULL, v)) return dropped(base);
        int c = next(p);
        p->at++;
        if (c == ']') return array_of(base);
        if (c == ',') continue;
        dropped(base);
        return malformed();
    }
}

static JSValue parse_object(parser *p, int depth) {
    uint32_t base = parts.length;
    p->at++;
    if (next(p) == '}') return p->at++, JS_NewObject(ctx);
    for (;;) {
        size_t n;
        const char *s = next(p) == '"' ? characters(p, &n) : 0;
        JSAtom key = s ? JS_NewAtomLen(ctx, s, n) : JS_ATOM_NULL;
        if (key == JS_ATOM_NULL || next(p) != ':') {
            JS_FreeAtom(ctx, key);
            dropped(base);
            return malformed();
        }
        p->at++;
        JSValue v = parse(p, depth + 1);
        if (JS_IsException(v)) {
            JS_FreeAtom(ctx, key);
            return dropped(base);
        }
        if (!push(key, v)) return dropped(base);
        int c = next(p);
        p->at++;
        if (c == '}') return object_of(base);
        if (c == ',') continue;
        dropped(base);
        return malformed();
    }
}

static JSValue word(parser *p, const char *spelled, JSValue v) {
    size_t n = strlen(spelled);
    if ((size_t)(p->end - p->at) < n || memcmp(p->at, spelled, n)) return malformed();
    p->at += n;
    return v;
}

static JSValue parse(parser *p, int depth) {
    if (depth > 1000) return JS_ThrowRangeError(ctx, "the input is nested more than 1000 deep");
    size_t n;
    const char *s;
    switch (next(p)) {
    case '{': return parse_object(p, depth);
    case '[': return parse_array(p, depth);
    case '"': return (s = characters(p, &n)) ? JS_NewStringLen(ctx, s, n) : malformed();
    case 't': return word(p, "true", JS_TRUE);
    case 'f': return word(p, "false", JS_FALSE);
    case 'n': return word(p, "null", JS_NULL);
    case -1: return malformed();
    }
    return parse_number(p);
}

static JSValue parse_all(const char *at, size_t n) {
    parser p = {at, at + n};
    JSValue v = parse(&p, 0);
    free(p.unescaped.at);
    if (JS_IsException(v) || next(&p) == -1) return v;
    JS_FreeValue(ctx, v);
    return malformed();
}

/* ---- Answers: as JSON.stringify, but that a BigInt is a number. ---- */

static bool quote(JSValueConst v) {
    size_t n, from = 0;
    const char *s = JS_ToCStringLen(ctx, &n, v);
    if (!s) return false;
    put(&answer, "\"", 1);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = s[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        char escaped[8];
        put(&answer, s + from, i - from);
        from = i + 1;
        if (c < 0x20) snprintf(escaped, sizeof escaped, "\\u%04x", c);
        else snprintf(escaped, sizeof escaped, "\\%c", c);
        puts_(&answer, escaped);
    }
    put(&answer, s + from, n - from);
    put(&answer, "\"", 1);
    JS_FreeCString(ctx, s);
    return true;
}

static bool write_value(JSValueConst v, int depth);

/* What a value with a method toJSON (a Date) stands for. */
static int converted(JSValueConst v, JSValue *out) {
    JSValue f = JS_GetPropertyStr(ctx, v, "toJSON");
    if (JS_IsException(f)) return -1;
    int is = JS_IsFunction(ctx, f);
    if (is) {
        *out = JS_Call(ctx, f, v, 0, 0);
        if (JS_IsException(*out)) is = -1;
    }
    JS_FreeValue(ctx, f);
    return is;
}

static bool written(JSValueConst v) { return !JS_IsUndefined(v) && !JS_IsFunction(ctx, v) && !JS_IsSymbol(v); }

static bool write_array(JSValueConst v, int depth) {
    int64_t n;
    if (JS_GetLength(ctx, v, &n) < 0) return false;
    put(&answer, "[", 1);
    for (int64_t i = 0; i < n; i++) {
        if (i) put(&answer, ",", 1);
        JSValue item = JS_GetPropertyInt64(ctx, v, i);
        bool ok = !JS_IsException(item) && write_value(item, depth);
        JS_FreeValue(ctx, item);
        if (!ok) return false;
    }
    put(&answer, "]", 1);
    return true;
}

static bool write_object(JSValueConst v, int depth) {
    JSPropertyEnum *keys;
    uint32_t n;
    if (JS_GetOwnPropertyNames(ctx, &keys, &n, v, JS_GPN_STRING_MASK | JS_GPN_ENUM_ONLY) < 0) return false;
    bool ok = true, first = true;
    put(&answer, "{", 1);
    for (uint32_t i = 0; i < n && ok; i++) {
        JSValue item = JS_GetProperty(ctx, v, keys[i].atom);
        ok = !JS_IsException(item);
        if (ok && written(item)) {
            JSValue key = JS_AtomToString(ctx, keys[i].atom);
            if (!first) put(&answer, ",", 1);
            first = false;
            ok = quote(key);
            put(&answer, ":", 1);
            JS_FreeValue(ctx, key);
            ok = ok && write_value(item, depth);
        }
        JS_FreeValue(ctx, item);
    }
    put(&answer, "}", 1);
    JS_FreePropertyEnum(ctx, keys, n);
    return ok;
}

static bool write_value(JSValueConst v, int depth) {
    if (depth > 200) {
        JS_ThrowTypeError(ctx, "the answer refers to itself, or is nested more than 200 deep");
        return false;
    }
    if (JS_IsString(v)) return quote(v);
    if (JS_IsNumber(v) || JS_IsBigInt(v)) {
        double d = 0;
        if (JS_IsNumber(v)) JS_ToFloat64(ctx, &d, v);
        const char *s = isfinite(d) ? JS_ToCString(ctx, v) : 0;
        puts_(&answer, s ? s : "null");
        JS_FreeCString(ctx, s);
        return true;
    }
    if (JS_IsBool(v)) return puts_(&answer, JS_ToBool(ctx, v) ? "true" : "false"), true;
    if (!JS_IsObject(v) || !written(v)) return puts_(&answer, "null"), true;
    if (JS_IsArray(v)) return write_array(v, depth + 1);
    JSValue other;
    int is = converted(v, &other);
    if (is < 0) return false;
    if (!is) return write_object(v, depth + 1);
    bool ok = write_value(other, depth + 1);
    JS_FreeValue(ctx, other);
    return ok;
}

/* ---- Exceptions ---- */

/* Where each line of the script comes from: pairs of a source's index and a line, -1 = our own. */
static const int32_t *origins;
static uint32_t origin_lines;
static const char *sources; /* names, each terminated */

static const char *source_name(int32_t i) {
    const char *s = sources;
    while (i-- > 0) s += strlen(s) + 1;
    return s;
}

/* Writes the author's own frames of a stack: "decide (plugin.ts:7), check (lib.ts:3)". */
static void frames(const char *stack) {
    int count = 0;
    for (const char *line = stack; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : 0) {
        const char *end = strchr(line, '\n'), *place;
        if (!end) end = line + strlen(line);
        place = strstr(line, "plugin:");
        if (!place || place >= end || strncmp(line, "    at ", 7)) continue;
        uint32_t n = strtoul(place + 7, 0, 10);
        if (n == 0 || n > origin_lines || origins[2 * (n - 1)] < 0) continue;
        if (++count > 8) {
            puts_(&answer, ", ...");
            return;
        }
        puts_(&answer, count == 1 ? " (at " : ", ");
        const char *name_end = strchr(line + 7, '(');
        if (name_end && name_end < place && name_end > line + 8 && line[7] != '<') {
            put(&answer, line + 7, name_end - line - 8);
            puts_(&answer, " ");
        }
        char number[16];
        puts_(&answer, source_name(origins[2 * (n - 1)]));
        snprintf(number, sizeof number, ":%d", origins[2 * (n - 1) + 1]);
        puts_(&answer, number);
    }
    if (count) puts_(&answer, ")");
}

/* Makes the answer of an exception: its words, and where it was thrown. A Failure is the author's
 * own answer, and stands for itself. */
static uint64_t failure(JSValue e) {
    answer.length = 0;
    const char *words = JS_ToCString(ctx, e);
    puts_(&answer, words ? words : "an exception that cannot be shown");
    JS_FreeCString(ctx, words);
    JSValue quiet = JS_IsObject(e) ? JS_GetPropertyStr(ctx, e, "answer") : JS_UNDEFINED;
    JSValue stack = JS_IsObject(e) ? JS_GetPropertyStr(ctx, e, "stack") : JS_UNDEFINED;
    if (JS_IsString(quiet)) {
        const char *s = JS_ToCString(ctx, quiet);
        answer.length = 0;
        puts_(&answer, s ? s : "");
        JS_FreeCString(ctx, s);
    } else if (JS_IsString(stack)) {
        const char *s = JS_ToCString(ctx, stack);
        frames(s);
        JS_FreeCString(ctx, s);
    }
    bool lost = exhausted || strstr(answer.at ? answer.at : "", "InternalError: out of memory") == answer.at;
    JS_FreeValue(ctx, quiet);
    JS_FreeValue(ctx, stack);
    JS_FreeValue(ctx, e);
    if (lost) {
        put(&answer, "", 1);
        fputs(answer.at ? answer.at : "out of memory", stderr);
        panic(": raise limits.memory of the plugin's entry, or keep less");
    }
    return given(true);
}

static uint64_t thrown(void) { return failure(JS_GetException(ctx)); }

static uint64_t error(const char *words) {
    answer.length = 0;
    puts_(&answer, words);
    return given(true);
}

/* ---- What the glue calls ---- */

__attribute__((import_module("wasmplane"), import_name("call"))) int64_t host_call(const char *op, size_t op_length, const char *in, size_t in_length, char *out, size_t capacity);

/* call(name, input, bytes) -> the reply, as a string or as bytes */
static JSValue ask(JSContext *c, JSValueConst self, int argc, JSValueConst *argv) {
    size_t name_length, length;
    const char *name = JS_ToCStringLen(c, &name_length, argv[0]);
    const char *in = name ? JS_ToCStringLen(c, &length, argv[1]) : 0;
    static char small[1024];
    char *out = small;
    JSValue v = JS_EXCEPTION;
    if (in) {
        int64_t n = host_call(name, name_length, in, length, small, sizeof small);
        bool failed = n < 0;
        if (failed || n > (int64_t)sizeof small) { /* an empty name answers the last reply again */
            int64_t reply = host_call("", 0, "", 0, 0, 0);
            out = js_malloc(c, reply + 1);
            if (out) reply = host_call("", 0, "", 0, out, reply);
            if (out && failed) JS_ThrowPlainError(c, "%.*s", (int)reply, out);
            else n = reply;
        }
        if (!failed && out) v = JS_ToBool(c, argv[2]) ? JS_NewUint8ArrayCopy(c, (uint8_t *)out, n) : JS_NewStringLen(c, out, n);
        if (out != small) js_free(c, out);
    }
    JS_FreeCString(c, name);
    JS_FreeCString(c, in);
    return v;
}

/* print(stream, text) */
static JSValue print(JSContext *c, JSValueConst self, int argc, JSValueConst *argv) {
    int32_t stream = 1;
    JS_ToInt32(c, &stream, argv[0]);
    const char *s = JS_ToCString(c, argv[1]);
    if (!s) return JS_EXCEPTION;
    FILE *f = stream == 2 ? stderr : stdout;
    fputs(s, f);
    fputc('\n', f);
    fflush(f);
    JS_FreeCString(c, s);
    return JS_UNDEFINED;
}

/* hook(operation, function, form) */
static JSValue hook(JSContext *c, JSValueConst self, int argc, JSValueConst *argv) {
    int32_t op, f;
    if (JS_ToInt32(c, &op, argv[0]) || JS_ToInt32(c, &f, argv[2])) return JS_EXCEPTION;
    if (op < 0 || op >= OPERATIONS) return JS_ThrowRangeError(c, "an operation is a number from 0 to %d", OPERATIONS - 1);
    JS_FreeValue(c, hooks[op]);
    hooks[op] = JS_DupValue(c, argv[1]);
    form[op] = f;
    return JS_UNDEFINED;
}

/* stringify(value) -> JSON, as answers are written */
static JSValue stringify(JSContext *c, JSValueConst self, int argc, JSValueConst *argv) {
    text outer = answer; /* which may be half written: a method toJSON may call this */
    answer = (text){0};
    JSValue v = write_value(argv[0], 0) ? JS_NewStringLen(c, answer.at, answer.length) : JS_EXCEPTION;
    free(answer.at);
    answer = outer;
    return v;
}

/* parse(text) -> the value of JSON, as inputs are read */
static JSValue parse_text(JSContext *c, JSValueConst self, int argc, JSValueConst *argv) {
    size_t n;
    const char *s = JS_ToCStringLen(c, &n, argv[0]);
    if (!s) return JS_EXCEPTION;
    JSValue v = parse_all(s, n);
    JS_FreeCString(c, s);
    return v;
}

/* describe(function) */
static JSValue set_describer(JSContext *c, JSValueConst self, int argc, JSValueConst *argv) {
    JS_FreeValue(c, describer);
    describer = JS_DupValue(c, argv[0]);
    return JS_UNDEFINED;
}

/* table(columns, cells of the pod) */
static uint32_t columns, pod_cells;
static JSValue set_table(JSContext *c, JSValueConst self, int argc, JSValueConst *argv) {
    if (JS_ToUint32(c, &columns, argv[0]) || JS_ToUint32(c, &pod_cells, argv[1])) return JS_EXCEPTION;
    return JS_UNDEFINED;
}

static const JSCFunctionListEntry functions[] = {
    JS_CFUNC_DEF("call", 3, ask), JS_CFUNC_DEF("print", 2, print), JS_CFUNC_DEF("hook", 3, hook),
    JS_CFUNC_DEF("describe", 1, set_describer), JS_CFUNC_DEF("stringify", 1, stringify), JS_CFUNC_DEF("parse", 1, parse_text),
    JS_CFUNC_DEF("table", 2, set_table),
};

/* ---- Starting: at build time ---- */

/* While a script is evaluated, what is freed is filled with zeros, which take no room in the plugin. */
static bool building = true;

static void *allocate_zeros(void *opaque, size_t count, size_t size) { return calloc(count, size); }
static void *allocate(void *opaque, size_t size) { return malloc(size); }
static void release(void *opaque, void *at) {
    if (at && building) {
        memset(at, 0, malloc_usable_size(at));
        __asm__ volatile("" : : "r"(at) : "memory"); /* or the compiler leaves it out, since nobody reads it */
    }
    free(at);
}
static void *reallocate(void *opaque, void *at, size_t size) {
    if (!building || !at) return realloc(at, size);
    void *moved = malloc(size);
    if (!moved) return 0;
    size_t old = malloc_usable_size(at);
    memcpy(moved, at, old < size ? old : size);
    release(0, at);
    return moved;
}
/* The same of what is free in the engine's own blocks of small things. */
static void clear_arenas(void) {
    struct list_head *el;
    for (int i = 0; i < JS_ARENA_BLOCK_SIZE_COUNT; i++) {
        list_for_each(el, &rt->arena_state.free_arena_list[i]) {
            JSArena *arena = list_entry(el, JSArena, free_link);
            for (unsigned k = arena->first_free_block; k != JS_ARENA_FREE_NIL;) {
                JSMallocBlockHeader *b = arena_get_block(arena, k, arena_block_sizes[i]);
                memset(b->user_data, 0, arena_block_sizes[i] - sizeof(JSMallocBlockHeader));
                k = b->u.free_next;
            }
        }
    }
}

static size_t usable(const void *at) { return malloc_usable_size((void *)at); }

static const JSMallocFunctions memory = {allocate_zeros, allocate, release, reallocate, usable};

static bool start(void) {
    rt = JS_NewRuntime2(&memory, 0);
    ctx = rt ? JS_NewContext(rt) : 0;
    if (!ctx) return false;
    /* A script that recurses without end gets an exception that names its lines, some 390 calls deep; by limits.stack
     * of 4 MiB the host would end it at 420. The rest of the stack is for what is called without a check. */
    rt->stack_limit = (uintptr_t)&__stack_low + 16384;
    for (int i = 0; i < OPERATIONS; i++) hooks[i] = JS_UNDEFINED;
    describer = JS_UNDEFINED;
    JSValue global = JS_GetGlobalObject(ctx), own = JS_NewObject(ctx);
    JS_SetPropertyFunctionList(ctx, own, functions, countof(functions));
    JS_DefinePropertyValueStr(ctx, global, "__wasmplane", own, JS_PROP_C_W_E);
    JS_FreeValue(ctx, global);
    return true;
}

/* Runs what promises have left to be done, and answers what v, a promise perhaps, came to. */
static JSValue resolved(JSValue v) {
    JSContext *c;
    int more;
    bool failed = JS_IsException(v);
    JSValue e = failed ? JS_GetException(ctx) : JS_UNDEFINED; /* what is left to be done may throw, too */
    do more = rt && !list_empty(&rt->job_list) ? JS_ExecutePendingJob(rt, &c) : 0;
    while (more > 0);
    if (failed) return JS_Throw(ctx, e);
    if (more < 0) {
        JS_FreeValue(ctx, v);
        return JS_EXCEPTION;
    }
    if (!JS_IsPromise(v)) return v;
    JSPromiseStateEnum state = JS_PromiseState(ctx, v);
    JSValue result = JS_PromiseResult(ctx, v);
    JS_FreeValue(ctx, v);
    if (state == JS_PROMISE_FULFILLED) return result;
    if (state == JS_PROMISE_REJECTED) return JS_Throw(ctx, result);
    JS_FreeValue(ctx, result);
    return JS_ThrowTypeError(ctx, "the promise is never fulfilled: there are no timers, and nothing to wait for");
}

/* Evaluates a bundle, a module. The input: the lengths of the script and of the table of lines (u32 each), the
 * table, the names of the sources, a zero, the script, a zero. */
EXPORT("evaluate") uint64_t evaluate(char *at, uint32_t length) {
    uint32_t script_length, table_length;
    memcpy(&script_length, at, 4);
    memcpy(&table_length, at + 4, 4);
    char *kept = malloc(length - script_length);
    if (!kept) return error("out of memory");
    memcpy(kept, at + 8, length - 8 - script_length - 1);
    origins = (const int32_t *)kept;
    origin_lines = table_length / 8;
    sources = kept + table_length;
    JSValue v = JS_Eval(ctx, at + length - script_length - 1, script_length, "plugin", JS_EVAL_TYPE_MODULE);
    v = resolved(v);
    if (JS_IsException(v)) return thrown();
    JS_FreeValue(ctx, v);
    if (!JS_IsFunction(ctx, describer)) return error("the script makes no plugin");
    JS_RunGC(rt);
    release(0, input.at);
    memset(&input, 0, sizeof input);
    clear_arenas();
    building = false;
    return 0;
}

/* ---- The ABI ---- */

EXPORT("alloc") char *alloc_(uint32_t n) {
    if (!ctx && !start()) return 0;
    renew(&input);
    renew(&answer);
    return room(&input, (size_t)n + 1) ? input.at : 0;
}

static uint64_t reply(JSValue v) {
    v = resolved(v);
    if (JS_IsException(v)) return thrown();
    answer.length = 0;
    if (JS_IsUndefined(v) || JS_IsNull(v)) return 0;
    bool ok = write_value(v, 0);
    JS_FreeValue(ctx, v);
    if (exhausted) panic("out of memory while the answer was written: raise limits.memory of the plugin's entry");
    return ok ? given(false) : thrown();
}

EXPORT("describe") uint64_t describe(void) {
    renew(&answer);
    if (!JS_IsFunction(ctx, describer)) return error("the script makes no plugin");
    return reply(JS_Call(ctx, describer, JS_UNDEFINED, 0, 0));
}

static int64_t *rows;
static uint8_t *verdicts;
static uint32_t reserved;

EXPORT("reserve") int64_t *reserve(uint32_t n) {
    free(rows);
    free(verdicts);
    rows = calloc((size_t)n * columns + 1, 8);
    verdicts = calloc((size_t)n + 1, 1);
    reserved = rows && verdicts ? n : 0;
    return rows;
}

static bool fill(JSValue array, const int64_t *cells, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (JS_SetPropertyUint32(ctx, array, i, JS_NewInt64(ctx, cells[i])) < 0) return false;
    return true;
}

/* Judges all nodes: the function gets the pod's cells and the node's, in two arrays that are used again. */
static uint64_t judge(JSValueConst f, const int64_t *in) {
    uint32_t n = in[0];
    if (n > reserved) return error("more rows than were reserved");
    JSValue cells[2] = {JS_NewArray(ctx), JS_NewArray(ctx)};
    bool ok = fill(cells[0], in + 1, pod_cells);
    for (uint32_t i = 0; i < n && ok; i++) {
        int32_t verdict = 0;
        ok = fill(cells[1], rows + (size_t)i * columns, columns);
        JSValue v = ok ? JS_Call(ctx, f, JS_UNDEFINED, 2, (JSValueConst *)cells) : JS_EXCEPTION;
        ok = ok && !JS_IsException(v) && JS_ToInt32(ctx, &verdict, v) == 0;
        JS_FreeValue(ctx, v);
        verdicts[i] = verdict;
    }
    JS_FreeValue(ctx, cells[0]);
    JS_FreeValue(ctx, cells[1]);
    if (!ok) return thrown();
    return (uint64_t)(uintptr_t)verdicts << 32 | n;
}

EXPORT("call") uint64_t call(int32_t op, char *at, uint32_t n) {
    if (!ctx || op < 0 || op >= OPERATIONS || !JS_IsFunction(ctx, hooks[op])) return error("the plugin has no such operation");
    if (form[op] == FORM_TABLE) return judge(hooks[op], (const int64_t *)at);
    JSValue document = JS_UNDEFINED;
    if (form[op] == FORM_FLAT && n >= 8) {
        uint64_t root;
        memcpy(&root, at, 8);
        document = value((const uint8_t *)at, root);
    } else if (form[op] == FORM_JSON && n > 0) {
        input.at[n] = 0; /* numbers are read up to something else */
        document = parse_all(input.at, n);
    }
    if (JS_IsException(document)) return thrown();
    JSValue v = JS_Call(ctx, hooks[op], JS_UNDEFINED, 1, (JSValueConst *)&document);
    JS_FreeValue(ctx, document);
    return reply(v);
}
